// One chat in two tabs.
import assert from 'node:assert/strict';
import {answerOf, done, say, stored, until} from './browser.mjs';

async function twoTabs(page, context) {
  await say(page, 'start');
  await answerOf(page).getByText('You said: start').waitFor();
  await done(page);
  const other = await context.newPage();
  await other.goto(page.url());
  await answerOf(other).getByText('You said: start').waitFor();
  return other;
}

export const tab_cases = {
  async what_one_tab_writes_appears_in_the_other({page, context}) {
    const other = await twoTabs(page, context);
    await say(page, 'from the first');
    await answerOf(other).getByText('You said: from the first').waitFor();
    await done(page);
    await until(() => other.locator('#send').count(), 1);
    await say(other, 'from the second');
    await answerOf(page).getByText('You said: from the second').waitFor();
    assert.equal(await page.locator('.message.user').count(), 3);
  },
  async messages_that_two_tabs_write_at_once_are_both_kept({page, context}) {
    const other = await twoTabs(page, context);
    await page.evaluate(() => { BroadcastChannel.prototype.postMessage = () => {}; });  // the tabs do not hear each other
    await other.evaluate(() => { BroadcastChannel.prototype.postMessage = () => {}; });
    await Promise.all([say(page, 'left'), say(other, 'right')]);
    await answerOf(page).getByText('You said: left').waitFor();
    await answerOf(other).getByText('You said: right').waitFor();
    await Promise.all([done(page), done(other)]);
    await until(() => stored(page), text => text.includes('You said: left') && text.includes('You said: right'));
    await other.reload();
    await other.locator('.message.user .branches', {hasText: '/ 2'}).waitFor();
  },
  async an_answer_goes_on_while_the_other_tab_edits_the_title({page, context}) {
    const other = await twoTabs(page, context);
    await say(page, 'slow');
    await answerOf(other).getByText('word word').waitFor();
    await other.locator('nav li').hover();
    await other.getByRole('button', {name: 'Rename start'}).click();
    await other.getByLabel('Title of the chat').fill('Renamed');
    await other.keyboard.press('Enter');
    await page.getByRole('heading', {name: 'Renamed'}).waitFor();
    await page.locator('#stop').click();
    await page.getByText('Stopped.').waitFor();
    await until(() => stored(page), text => text.includes('"Renamed"') && text.includes('"stopped"'));
    await other.getByText('Stopped.').waitFor();
  },
  async a_chat_deleted_in_one_tab_can_be_kept_in_the_other({page, context}) {
    const other = await twoTabs(page, context);
    await page.locator('nav li').hover();
    await page.getByRole('button', {name: 'Delete start'}).click();
    await other.getByText('The chat was deleted in another tab.').waitFor();
    await other.getByRole('button', {name: 'Keep it'}).click();
    await answerOf(other).getByText('You said: start').waitFor();
    await until(() => stored(page), text => text.includes('You said: start'));
  },
  async settings_of_one_tab_reach_the_other({page, context}) {
    const other = await twoTabs(page, context);
    await page.locator('#settings').click();
    await page.locator('select[name=theme]').selectOption('dark');
    await until(() => other.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(22, 24, 28)');
  },
};
