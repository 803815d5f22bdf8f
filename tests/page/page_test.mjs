// Tests of the chat page in a real browser: node page_test.mjs PLAYWRIGHT CHROMIUM LIBRARIES [SCREENSHOTS]
//   PLAYWRIGHT   folder of the playwright-core package
//   LIBRARIES    folder of the page's libraries (build/deps/page)
//   SCREENSHOTS  folder for docs/images; none are written without it
import {createRequire} from 'node:module';
import {readFileSync} from 'node:fs';
import {join, resolve, dirname} from 'node:path';
import {fileURLToPath} from 'node:url';
import assert from 'node:assert/strict';
import {startMock} from './mock_server.mjs';

const [playwright, chromium, libraries, screenshots] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const sources = resolve(here, '../../server/page');
const policy = readPolicy();

function readPolicy() {  // the one that the server sends
  const text = readFileSync(join(sources, 'embed.cmake'), 'utf8');
  return [...text.matchAll(/^ {4}\\"(.*?)\\"/gm)].map(match => match[1]).join('');
}

const HOSTILE = [
  '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>',
  '<a href="javascript:window.hacked=3">click</a> [link](javascript:window.hacked=4) <svg onload="window.hacked=5"></svg>',
  '![x](http://198.51.100.1/track.png) <iframe src="http://198.51.100.1/"></iframe> <form action="http://198.51.100.1/"><input></form>',
  '<style>body{display:none}</style><div style="position:fixed;inset:0" id="app">cover</div>',
  '$\\href{javascript:window.hacked=6}{x}$ $$\\htmlData{a=b}{x}$$ `<b>code</b>`',
  '<math><mtext></mtext><style><img src=x onerror="window.hacked=7"></style></math>',
].join('\n\n');

const MARKDOWN = ['# Title', '', 'Text with `code`, **bold** and $a^2 + b^2 = c^2$; it costs $5 or $6.', '', '$$\\int_0^1 x\\,dx = \\frac{1}{2}$$', '', '```python',
  'def f(x):', '    return x + 1', '```', '', '| a | b |', '| - | - |', '| 1 | 2 |', ''].join('\n');

function answer(body) {
  const last = body.messages.at(-1).content;
  if (last === 'hostile') return {text: HOSTILE};
  if (last === 'markdown') return {text: MARKDOWN, reasoning: 'First I think about **it**.'};
  if (last === 'slow') return {text: 'word '.repeat(400), pause: 20};
  if (last === 'silent') return {text: 'late', delay: 60000};
  if (last === 'fail') return {status: 400, error: 'messages[0].content: the mock refuses this'};
  return {text: `You said: ${last}`};
}

const cases = {
  async sends_a_message_and_streams_the_answer({page, mock}) {
    await say(page, 'hello');
    await page.getByText('You said: hello').waitFor();
    assert.deepEqual(mock.requests.at(-1).body.messages, [{role: 'user', content: 'hello'}]);
    assert.equal(mock.requests.at(-1).body.stream_options.include_usage, true);
    await page.getByText('5 tokens · 123.4 tok/s').waitFor();
    await page.getByText('15 / 2048').waitFor();
  },
  async markdown_code_maths_and_reasoning_are_rendered({page}) {
    await say(page, 'markdown');
    await page.locator('.message.assistant h1', {hasText: 'Title'}).waitFor();
    await page.locator('#send').waitFor();
    assert.equal(await page.locator('.message.assistant math').count(), 2);
    assert.match(await page.locator('.message.assistant .body p').first().textContent(), /it costs \$5 or \$6/);
    assert.ok(await page.locator('code .hljs-keyword').count() > 0);
    assert.equal(await page.locator('.table td').count(), 2);
    assert.equal(await page.locator('.reasoning strong').count(), 0);  // folded
    await page.locator('.reasoning summary').click();
    await page.locator('.reasoning strong').waitFor();
    await page.locator('button.copy').click();
    await page.getByText('Copied').waitFor();
    await shot(page, 'page.png');
  },
  async hostile_markdown_runs_nothing_and_contacts_no_other_host({page, contacted}) {
    await say(page, 'hostile');
    await page.locator('#send').waitFor();
    await page.waitForTimeout(300);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator('main script, main iframe, main img, main form, main svg, main style').count(), 0);
    assert.equal(await page.locator('main a[href^="javascript"]').count(), 0);
    assert.equal(await page.locator('#app').count(), 1);
    assert.ok(await page.locator('#input').isVisible());
    assert.deepEqual(contacted(), []);
  },
  async stop_ends_the_stream_and_keeps_the_text({page, mock}) {
    await say(page, 'slow');
    await page.getByText('word word word').waitFor();
    await page.locator('#stop').click();
    await page.getByText('Stopped.').waitFor();
    await page.locator('#send').waitFor();
    await until(() => mock.requests.at(-1).gone);
    const text = await page.locator('.message.assistant .body').textContent();
    assert.ok(text.startsWith('word word') && text.length < 1900);
  },
  async edit_and_regenerate_make_branches({page, mock}) {
    await say(page, 'first');
    await page.getByText('You said: first').waitFor();
    await page.locator('.message.user').hover();
    await page.locator('.message.user').getByText('Edit').click();
    await page.locator('.editor textarea').fill('second');
    await page.locator('.editor').getByText('Send').click();
    await page.getByText('You said: second').waitFor();
    assert.deepEqual(mock.requests.at(-1).body.messages, [{role: 'user', content: 'second'}]);
    await page.locator('.message.user .branches', {hasText: '2 / 2'}).waitFor();
    await page.locator('.message.user').getByTitle('Previous version').click();
    await page.getByText('You said: first').waitFor();
    await page.getByText('Regenerate').click();
    await page.locator('.message.assistant .branches', {hasText: '2 / 2'}).waitFor();
  },
  async reload_keeps_conversations_and_branches({page}) {
    await say(page, 'remember me');
    await page.getByText('You said: remember me').waitFor();
    await until(async () => (await stored(page)).includes('You said: remember me'));
    await page.reload();
    await page.getByText('You said: remember me').waitFor();
    await page.locator('#new').click();
    await say(page, 'another chat');
    await page.getByText('You said: another chat').waitFor();
    await page.locator('#search').fill('remember');
    await until(async () => await page.locator('nav li').count() === 1);
    await page.locator('nav li .title').click();
    await page.getByText('You said: remember me').waitFor();
  },
  async reload_during_an_answer_keeps_what_has_arrived({page}) {
    await say(page, 'slow');
    await page.getByText('word word word').waitFor();
    await until(async () => (await stored(page)).includes('word word word'));
    await page.reload();
    await page.getByText('word word word').waitFor();
  },
  async reload_before_the_first_token_keeps_the_message({page}) {
    await say(page, 'silent');
    await until(async () => (await stored(page)).includes('silent'));
    await page.reload();
    await page.locator('.message.user', {hasText: 'silent'}).waitFor();
  },
  async export_and_import_give_the_same_chats({page}) {
    await say(page, 'exported');
    await page.getByText('You said: exported').waitFor();
    await page.locator('#send').waitFor();
    const [file] = await Promise.all([page.waitForEvent('download'), page.locator('#export').click()]);
    const path = await file.path();
    assert.equal(JSON.parse(readFileSync(path, 'utf8')).conversations.length, 1);
    await page.locator('input[type=file]').setInputFiles(path);
    await page.getByText('1 chats imported').waitFor();
    await until(async () => await page.locator('nav li').count() === 2);
    await page.locator('input[type=file]').setInputFiles({name: 'bad.json', mimeType: 'application/json', buffer: Buffer.from('{"format":"mlxcel-chats","conversations":[{}]}')});
    await page.getByText("cannot import bad.json: conversations[0]: field 'root'").waitFor();
  },
  async settings_reach_the_request({page, mock}) {
    await page.locator('#settings').click();
    await page.locator('input[name=temperature]').fill('0.2');
    await page.locator('input[name=max_tokens]').fill('64');
    await page.locator('textarea[name=system]').fill('Be brief.');
    await page.locator('#close-settings').click();
    await say(page, 'hello');
    await page.getByText('You said: hello').waitFor();
    const {body} = mock.requests.at(-1);
    assert.equal(body.temperature, 0.2);
    assert.equal(body.max_tokens, 64);
    assert.deepEqual(body.messages[0], {role: 'system', content: 'Be brief.'});
  },
  async errors_are_shown_and_the_chat_goes_on({page}) {
    await say(page, 'fail');
    await page.getByText('messages[0].content: the mock refuses this').waitFor();
    await say(page, 'hello');
    await page.getByText('You said: hello').waitFor();
  },
  async keyboard_works_without_a_mouse({page}) {
    await page.keyboard.type('typed');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('two lines');
    await page.keyboard.press('Enter');
    await page.getByText('You said: typed').waitFor();
    await page.locator('#send').waitFor();
    await page.keyboard.press('ArrowUp');
    await page.locator('.editor textarea').waitFor();
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+k');
    await until(() => page.evaluate(() => document.activeElement.id === 'search'));
    await page.keyboard.press('Control+Shift+O');
    await until(() => page.evaluate(() => document.activeElement.id === 'input'));
  },
  async phone_width_has_no_sideways_scrolling({page}) {
    await page.setViewportSize({width: 360, height: 740});
    await say(page, 'markdown');
    await page.locator('.message.assistant h1').waitFor();
    await page.locator('#send').waitFor();
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    assert.ok(!await page.locator('nav').isVisible());
    await shot(page, 'page-phone.png');
    await page.locator('#menu').click();
    await page.locator('nav.open').waitFor();
    await page.locator('#new').click();
    await page.locator('.empty').waitFor();
  },
  async dark_theme_is_applied_and_kept({page}) {
    await page.locator('#settings').click();
    await page.locator('select[name=theme]').selectOption('dark');
    await page.locator('#close-settings').click();
    await page.reload();
    await page.locator('#input').waitFor();
    const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(back, 'rgb(22, 24, 28)');
    await say(page, 'markdown');
    await page.locator('.message.assistant h1').waitFor();
    await page.locator('#send').waitFor();
    await shot(page, 'page-dark.png');
  },
};

async function say(page, text) {
  await page.locator('#send:not([disabled])').waitFor();
  await page.locator('#input').fill(text);
  await page.keyboard.press('Enter');
}
async function shot(page, name) {
  if (screenshots) await page.screenshot({path: join(screenshots, name)});
}
// The chats in the browser's database, as JSON.
async function stored(page) {
  return page.evaluate(() => new Promise((done, fail) => {
    const opened = indexedDB.open('mlxcel', 1);
    opened.onerror = () => fail(opened.error);
    opened.onsuccess = () => {
      const all = opened.result.transaction('conversations').objectStore('conversations').getAll();
      all.onerror = () => fail(all.error);
      all.onsuccess = () => { opened.result.close(); done(JSON.stringify(all.result)); };
    };
  }));
}
async function until(check, seconds = 30) {
  for (const end = Date.now() + seconds * 1000; !await check();) {
    assert.ok(Date.now() < end, `timed out: ${check}`);
    await new Promise(done => setTimeout(done, 20));
  }
}

const {chromium: launcher} = createRequire(import.meta.url)(resolve(playwright));
const browser = await launcher.launch({executablePath: chromium, args: ['--no-sandbox']});
let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  const mock = await startMock([sources, libraries], policy, answer);
  const context = await browser.newContext({viewport: {width: 1100, height: 760}, acceptDownloads: true});
  const page = await context.newPage();
  page.setDefaultTimeout(30000);
  const hosts = [], problems = [];
  page.on('request', request => { if (!request.url().startsWith(mock.url) && !/^(data|blob):/.test(request.url())) hosts.push(request.url()); });
  page.on('pageerror', error => problems.push(String(error)));
  page.on('console', message => { if (message.type() === 'error' && !/status of 400/.test(message.text())) problems.push(message.text()); });
  try {
    await page.goto(mock.url);
    await page.locator('#input').waitFor();
    await run({page, mock, contacted: () => hosts});
    // The policy blocks what DOMPurify parses in a separate document before it removes it.
    assert.deepEqual(name.startsWith('hostile') ? problems.filter(text => !text.includes('Content Security Policy')) : problems, []);
    assert.deepEqual(hosts, []);
    console.log(name);
  } catch (error) {
    ++failed;
    console.log(`${name}\n  ${String(error.stack).split('\n').slice(0, 8).join('\n  ')}\n  ${problems.join('\n  ')}\n  FAILED`);
  }
  await context.close();
  mock.close();
}
await browser.close();
console.log(`${Object.keys(cases).length - failed} passed, ${failed} failed, 0 skipped`);
process.exit(failed ? 1 : 0);
