// Servers that are gone, slow or locked, and reloads at a bad time.
import assert from 'node:assert/strict';
import {answerOf, done, say, stored, until} from './browser.mjs';

export const fault_cases = {
  async errors_are_shown_and_the_chat_goes_on({page}) {
    await say(page, 'fail');
    await page.getByText('temperature: expected a number from 0 to 1e+06, not -3').first().waitFor();
    await say(page, 'hello');
    await answerOf(page).getByText('You said: hello').waitFor();
  },
  async a_dead_server_says_so_and_retry_works_when_it_is_back({page, network, expect}) {
    expect(/ERR_EMPTY_RESPONSE|ERR_CONNECTION|Failed to load|NetworkError|status of/);
    network.isGone = true;
    await say(page, 'hello');
    await page.locator('.ending.error', {hasText: 'The server does not answer.'}).waitFor();
    await page.locator('.notice.down').waitFor();
    network.isGone = false;
    await page.locator('.notice.down').waitFor({state: 'detached'});  // the page asks by itself
    await page.getByRole('button', {name: 'Retry'}).click();
    await answerOf(page).getByText('You said: hello').waitFor();
    assert.equal(await page.locator('.branches').count(), 0);
  },
  async an_answer_that_breaks_off_can_be_continued({page, network, expect}) {
    expect(/ERR_|Failed to load|NetworkError|incomplete/);
    network.cutAfter = 2500;
    await say(page, 'slow');
    await page.locator('.ending.error').waitFor();
    network.cutAfter = 0;
    const text = await answerOf(page).textContent();
    assert.ok(text.startsWith('word'));
    await page.getByRole('button', {name: 'Retry'}).waitFor();
    await page.getByRole('button', {name: 'Continue'}).click();
    await answerOf(page).getByText('and the rest.').waitFor();
    assert.ok((await answerOf(page).textContent()).startsWith(text.trimEnd()));
    await done(page);
    assert.equal(await page.locator('.ending').count(), 0);
  },
  async an_offline_browser_keeps_the_message({page, context, name, network, expect}) {
    expect(/ERR_INTERNET_DISCONNECTED|ERR_EMPTY|Failed to load|NetworkError/);
    if (name === 'chromium') await context.setOffline(true);
    else network.isGone = true;  // Firefox has no such command
    await say(page, 'kept');
    await page.locator('.ending.error').waitFor();
    await until(() => stored(page), text => text.includes('kept'));
    if (name === 'chromium') await context.setOffline(false);
    network.isGone = false;
    await page.locator('.notice.down').waitFor({state: 'detached'});
    await page.getByRole('button', {name: 'Retry'}).click();
    await answerOf(page).getByText('You said: kept').waitFor();
  },
  async a_slow_network_shows_what_it_waits_for({page, network, url}) {
    network.delay = 250;
    await page.goto(`${url}?slow`);
    await page.locator('#input').waitFor();
    await say(page, 'hello');
    await page.getByText('Reading the prompt…').waitFor();
    await page.locator('#stop').waitFor();
    await answerOf(page).getByText('You said: hello').waitFor();
  },
  async the_key_has_a_dialog_and_a_wrong_one_is_named({page, locked, expect}) {
    expect(/status of 401|Unauthorized/);
    await page.goto(locked.url);
    const dialog = page.getByRole('dialog', {name: 'API key'});
    await dialog.waitFor();
    await dialog.getByLabel('Key', {exact: true}).fill('wrong');
    await page.keyboard.press('Enter');
    await dialog.getByText('Wrong key.').waitFor();
    await page.keyboard.press('Escape');
    await dialog.waitFor({state: 'detached'});
    await say(page, 'hello');
    await dialog.waitFor();
    await dialog.getByLabel('Key', {exact: true}).fill('secret');
    await dialog.getByRole('button', {name: 'Use this key'}).click();
    await dialog.waitFor({state: 'detached'});
    await answerOf(page).getByText('You said: hello').waitFor();  // the message did not have to be sent again
  },
  async reload_during_an_answer_keeps_what_has_arrived({page}) {
    await say(page, 'slow');
    await until(() => stored(page), text => text.includes('word word word'));
    await page.reload();
    await answerOf(page).getByText('word word word').waitFor();
    // Firefox ends the request before it tells the page that it goes.
    await page.getByText(/The answer was interrupted\.|The connection to the server was lost\./).waitFor();
    await page.getByRole('button', {name: 'Continue'}).click();
    await answerOf(page).getByText('and the rest.').waitFor();
  },
  async reload_before_the_first_token_keeps_the_message({page}) {
    await say(page, 'silent');
    await until(() => stored(page), text => text.includes('silent'));
    await page.reload();
    await page.locator('.message.user', {hasText: 'silent'}).waitFor();
  },
};
