// What a user does in one tab.
import {readFileSync} from 'node:fs';
import assert from 'node:assert/strict';
import {answerOf, done, drawn, makeExport, say, stored, until} from './browser.mjs';

export const chat_cases = {
  async sends_a_message_and_streams_the_answer({page, network}) {
    await say(page, 'hello');
    await page.getByText('You said: hello').first().waitFor();
    assert.deepEqual(network.requests.at(-1).messages, [{role: 'user', content: 'hello'}]);
    assert.equal(network.requests.at(-1).stream_options.include_usage, true);
    await page.getByText(/^\d+ tokens · [\d.]+ tok\/s/).waitFor();
    await page.getByText(/\d+ \/ 2048/).waitFor();
  },
  async stop_ends_the_stream_and_continue_goes_on({page, server, network}) {
    const before = await server.metric('mlxcel_http_disconnects_total');
    await say(page, 'slow');
    await answerOf(page).getByText('word word word').waitFor();
    await page.locator('#stop').click();
    await page.getByText('Stopped.').waitFor();
    await until(() => server.metric('mlxcel_http_disconnects_total'), count => count > before);
    const text = await answerOf(page).textContent();
    assert.ok(text.startsWith('word word') && text.length < 1490);
    await page.getByRole('button', {name: 'Continue'}).click();
    await answerOf(page).getByText('and the rest.').waitFor();
    await done(page);
    assert.ok((await answerOf(page).textContent()).startsWith(text.trimEnd()));
    assert.equal(network.requests.at(-1).continue_final_message, true);
    assert.equal(network.requests.at(-1).messages.at(-1).role, 'assistant');
  },
  async an_answer_goes_on_after_its_limit({page}) {
    await say(page, 'limit');
    await page.getByText('The answer reached its token limit.').waitFor();
    await page.getByRole('button', {name: 'Continue'}).click();
    await answerOf(page).getByText('and the rest.').waitFor();
    assert.match(await answerOf(page).textContent(), /^one.*and the rest\.$/);
  },
  async one_chat_answers_while_another_sends({page}) {
    await say(page, 'slow');
    await answerOf(page).getByText('word word').waitFor();
    await page.locator('#new').click();
    await say(page, 'second chat');
    await answerOf(page).getByText('You said: second chat').waitFor();
    await page.locator('nav li', {hasText: 'slow'}).getByRole('img', {name: 'answering'}).waitFor();  // the first one still does
    await page.locator('nav a.title', {hasText: 'slow'}).click();
    await page.locator('#stop').click();
    await page.getByText('Stopped.').waitFor();
  },
  async a_message_sent_during_an_answer_waits_for_its_end({page, network}) {
    await say(page, 'limit');
    await say(page, 'follow');
    await answerOf(page).getByText('You said: follow').waitFor();
    assert.deepEqual(network.requests.at(-1).messages.map(message => message.role), ['user', 'assistant', 'user']);
    await say(page, 'slow');
    await answerOf(page).getByText('word word').waitFor();
    await say(page, 'waits');
    await page.getByRole('list', {name: 'Messages that wait'}).getByText('waits', {exact: true}).waitFor();
    await page.getByRole('button', {name: 'Remove the waiting message'}).click();
    await page.getByRole('list', {name: 'Messages that wait'}).waitFor({state: 'detached'});
    await page.keyboard.press('Escape');
    await page.getByText('Stopped.').waitFor();
  },
  async edit_and_regenerate_make_branches({page, network}) {
    await say(page, 'first');
    await answerOf(page).getByText('You said: first').waitFor();
    await done(page);
    await page.locator('.message.user').hover();
    await page.locator('.message.user').getByText('Edit').click();
    await page.locator('.editor textarea').fill('second');
    await page.locator('.editor').getByText('Send').click();
    await answerOf(page).getByText('You said: second').waitFor();
    assert.deepEqual(network.requests.at(-1).messages, [{role: 'user', content: 'second'}]);
    await page.locator('.message.user .branches', {hasText: '2 / 2'}).waitFor();
    await done(page);
    await page.locator('.message.user').getByTitle('Previous version').click();
    await answerOf(page).getByText('You said: first').waitFor();
    await page.getByText('Regenerate').click();
    await page.locator('.message.assistant .branches', {hasText: '2 / 2'}).waitFor();
  },
  async a_chat_has_a_url_and_a_new_tab_starts_a_new_chat({page, context, url}) {
    await say(page, 'remember me');
    await answerOf(page).getByText('You said: remember me').waitFor();
    await until(() => stored(page), text => text.includes('You said: remember me'));
    assert.match(page.url(), /#\/chat\/[0-9a-f]{24}$/);
    await page.reload();
    await answerOf(page).getByText('You said: remember me').waitFor();
    const other = await context.newPage();
    await other.goto(url);
    await other.locator('.empty').waitFor();
    await other.goto(page.url());
    await answerOf(other).getByText('You said: remember me').waitFor();
    await other.goto(`${url}#/chat/ffffffffffffffffffffffff`);
    await other.getByText('This browser does not have that chat').waitFor();
    await page.locator('#new').click();
    await page.locator('.empty').waitFor();
    await page.goBack();
    await answerOf(page).getByText('You said: remember me').waitFor();
    await page.locator('#search').fill('remember');
    await until(() => page.locator('nav li').count(), 1);
    await page.locator('#search').fill('nothing has this');
    await page.getByText('No chat has these words.').waitFor();
  },
  async export_and_import_give_the_same_chats({page, name}) {
    await say(page, 'exported');
    await answerOf(page).getByText('You said: exported').waitFor();
    await done(page);
    let file = makeExport(1, 2);
    if (name === 'chromium') {  // Playwright has no downloads over WebDriver BiDi in Firefox
      const [saved] = await Promise.all([page.waitForEvent('download'), page.locator('#export').click()]);
      const path = await saved.path();
      assert.equal(JSON.parse(readFileSync(path, 'utf8')).conversations.length, 1);
      file = path;
    }
    await page.locator('#import-file').setInputFiles(file);
    await page.getByText('1 chats imported').waitFor();
    await until(() => page.locator('nav li').count(), 2);
    await page.locator('#import-file').setInputFiles({name: 'bad.json', mimeType: 'application/json', buffer: Buffer.from('{"format":"mlxcel-chats","conversations":[{}]}')});
    await page.getByText("cannot import bad.json: conversations[0]: field 'root'").waitFor();
  },
  async settings_reach_the_request({page, network}) {
    await page.locator('#settings').click();
    await page.locator('input[name=temperature]').fill('0.2');
    await page.locator('input[name=max_tokens]').fill('64');
    await page.locator('textarea[name=system]').fill('Be brief.');
    await page.locator('textarea[name=extra]').fill('{"min_p": 0.1');
    await page.getByText('The extra fields are not a JSON object.').waitFor();
    await page.locator('textarea[name=extra]').fill('{"min_p": 0.1}');
    await page.locator('#close-settings').click();
    await say(page, 'hello');
    await answerOf(page).getByText('You said: hello').waitFor();
    const body = network.requests.at(-1);
    assert.deepEqual([body.temperature, body.max_tokens, body.min_p], [0.2, 64, 0.1]);
    assert.deepEqual(body.messages[0], {role: 'system', content: 'Be brief.'});
  },
  async text_files_are_attached_and_others_refused({page, network}) {
    await page.locator('#attach-file').setInputFiles([{name: 'notes.md', mimeType: 'text/markdown', buffer: Buffer.from('```\ninside\n```\n')},
      {name: 'image.png', mimeType: 'image/png', buffer: Buffer.from([0x89, 0x50, 0, 0xff])}]);
    await page.getByText('image.png is not text').waitFor();
    await page.getByRole('list', {name: 'Attached files'}).getByText('notes.md').waitFor();
    await say(page, 'read it');
    await page.locator('.message.user .file', {hasText: 'notes.md'}).waitFor();
    await until(() => network.requests.length, 1);
    assert.equal(network.requests[0].messages[0].content, 'File notes.md:\n````\n```\ninside\n```\n````\n\nread it');
    await done(page);
  },
  async long_messages_fold({page}) {
    await say(page, Array.from({length: 60}, (_, i) => `line ${i}`).join('\n'));
    const fold = page.getByRole('button', {name: 'Show all 60 lines'});
    await fold.waitFor();
    const height = () => page.locator('.message.user .body').evaluate(body => body.clientHeight);
    const before = await height();
    await fold.click();
    assert.equal(await page.getByRole('button', {name: 'Show less'}).getAttribute('aria-expanded'), 'true');
    assert.ok(await height() > 3 * before);
    await done(page);
  },
  async titles_are_generated_renamed_and_kept({page, network}) {
    await page.evaluate(() => localStorage.setItem('mlxcel-settings', '{"titles": "model"}'));
    await page.reload();
    await say(page, 'hello');
    await page.getByRole('heading', {name: 'Bright Colours'}).waitFor();
    assert.equal(network.requests.length, 2);
    await page.locator('nav li').hover();
    await page.getByRole('button', {name: 'Rename Bright Colours'}).click();
    await page.getByLabel('Title of the chat').fill('Mine');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', {name: 'Mine'}).waitFor();
    await until(() => stored(page), text => text.includes('"Mine"'));
    await page.reload();
    await page.getByRole('heading', {name: 'Mine'}).waitFor();
    await page.locator('nav li').hover();
    await page.getByRole('button', {name: 'Delete Mine'}).click();
    await page.locator('.empty').waitFor();
    await page.getByRole('button', {name: 'Undo'}).click();
    await answerOf(page).getByText('You said: hello').waitFor();
  },
  async starters_fill_the_field({page}) {
    await page.getByRole('list', {name: 'Examples'}).getByRole('button').first().click();
    await until(() => page.locator('#input').inputValue(), text => text.length > 20);
    await until(() => page.evaluate(() => document.activeElement.id), 'input');
  },
  // A click whose button moves between the press and the release is lost.
  async nothing_moves_when_the_list_of_models_arrives({page, network}) {
    const starters = page.getByRole('list', {name: 'Examples'});
    const boxes = () => page.evaluate(() => ['header', 'main', '.empty h2', '.starters', '.starters button', '.composer'].map(name => {
      const {x, y, width, height} = document.querySelector(name).getBoundingClientRect();
      return [name, x, y, width, height].join(' ');
    }));
    for (const [models, width] of [[['short'], 1100], [['a-name-that-needs-more-than-a-line-of-its-own-'.repeat(3)], 1100], [['Qwen3-0.6B-Instruct.Q4_1'], 400], [['first', 'second'], 400]]) {
      let arrive;
      network.models = new Promise(give => { arrive = () => give(models); });
      await page.setViewportSize({width, height: 760});
      await page.reload();
      await starters.waitFor();
      await drawn(page);
      const before = await boxes(), {x, y} = await starters.getByRole('button').first().boundingBox();
      await page.mouse.move(x + 20, y + 4);
      await page.mouse.down();
      arrive();
      await page.getByText(`${models[0]} runs on this server.`).waitFor();
      assert.deepEqual(await boxes(), before, `${models} at ${width} pixels`);
      await page.mouse.up();
      await until(() => page.locator('#input').inputValue(), text => text.length > 20);
    }
  },
  async each_chat_keeps_its_model({page, locked, network, expect}) {
    expect(/status of 401|Unauthorized/);
    await page.goto(locked.url);
    await page.getByLabel('Key', {exact: true}).fill('secret');
    await page.keyboard.press('Enter');
    await page.locator('#model').selectOption('second');
    await say(page, 'hello');
    await answerOf(page).getByText('You said: hello').waitFor();
    assert.equal(locked.network.requests.at(-1).model, 'second');
    assert.equal(network.requests.length, 0);
  },
  async a_chat_of_5000_messages_opens_with_few_elements({page}) {
    await page.locator('#import-file').setInputFiles(makeExport(1, 5000));
    await page.getByText('1 chats imported').waitFor();
    await page.locator('nav a.title').click();
    await page.getByText('message 4999 of chat 0').first().waitFor();
    assert.equal(await page.locator('.message').count(), 40);
    const top = () => page.locator('main').evaluate(main => main.scrollTop);
    await page.getByRole('button', {name: 'Show 40 earlier messages of 4960'}).click();
    await until(() => page.locator('.message').count(), 80);
    assert.ok(await top() > 500, 'what was in view stays in view');
  },
  async a_list_of_5000_chats_draws_the_first_hundred({page}) {
    await page.evaluate(text => new Promise((give, fail) => {
      const chats = JSON.parse(text).conversations.map((chat, i) => ({...chat, id: `c${i}`, title: '', model: '', system: ''}));
      const opened = indexedDB.open('mlxcel', 1);
      opened.onsuccess = () => {
        const work = opened.result.transaction('conversations', 'readwrite');
        for (let i = 0; i < 5000; ++i) work.objectStore('conversations').put({...chats[0], id: `c${i}`});
        work.oncomplete = () => { opened.result.close(); give(); };
        work.onabort = () => fail(work.error);
      };
    }), makeExport(1, 2).buffer.toString());
    await page.reload();
    await page.locator('#more-chats').waitFor();
    assert.equal(await page.locator('nav li').count(), 100);
    await page.locator('#more-chats').click();
    await until(() => page.locator('nav li').count(), 200);
  },
};
