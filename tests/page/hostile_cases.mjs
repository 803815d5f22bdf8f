// Hostile text through every way into the page: nothing of it runs, and it is shown as text. And how long a large chat takes to open.
import assert from 'node:assert/strict';
import {answerOf, done, drawn, makeExport, say, until} from './browser.mjs';

const EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script><svg onload="window.hacked=3"></svg>"\'><iframe srcdoc="<script>parent.hacked=4</script>">';

// No element of a text exists, no code of it ran, and the page still works.
async function check(page, ...places) {
  for (const place of places) await place.waitFor();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('#app :is(script, iframe, img, style, [onload], [onerror])').count(), 0);
  assert.equal(await page.locator('a[href^="javascript"], a[href^="data"]').count(), 0);
  assert.ok(await page.locator('#input').isVisible());
}

const conversation = fields => ({name: `${EVIL}.json`, mimeType: 'application/json', buffer: Buffer.from(JSON.stringify({format: 'mlxcel-chats', conversations: [fields]}))});

export const hostile_cases = {
  async an_imported_chat_is_text_in_all_its_fields({page}) {
    const node = (id, role, children, fields) => ({id, role, children, chosen: 0, content: EVIL, ...fields});
    const nodes = {root: node('root', 'root', ['a'], {content: ''}), a: node('a', 'user', ['b'], {files: [{name: EVIL, text: EVIL}]}),
      b: node('b', 'assistant', [], {reasoning: EVIL, model: EVIL, error: EVIL, calls: [{id: EVIL, name: EVIL, arguments: EVIL}, {id: 'c', name: EVIL, arguments: JSON.stringify({[EVIL]: EVIL})}],
        stats: {prompt: EVIL, output: EVIL, speed: EVIL}})};
    await page.locator('#import-file').setInputFiles(conversation({root: 'root', nodes, title: EVIL, system: EVIL, model: EVIL, created: 1, updated: Date.now()}));
    await page.getByText('1 chats imported').waitFor();
    await page.locator('nav a.title').click();
    await page.locator('.reasoning summary').click();
    await page.locator('.files summary').click();
    const text = value => page.locator(value).filter({hasText: EVIL}).first();
    await check(page, text('nav a.title'), text('header h1'), text('.message.user .body'), text('.file .name'), text('.file pre'), text('.message.assistant .body'),
      text('.reasoning .body'), text('.ending.error'), text('.call strong'), text('.call code'));
    assert.ok((await page.title()).startsWith(EVIL));
    await page.locator('#settings').click();
    assert.equal(await page.locator('textarea[name=chat-system]').inputValue(), EVIL);
    await page.locator('#close-settings').click();
    await page.locator('#search').fill('onerror');
    await page.locator('nav li').first().hover();
    await page.getByRole('button', {name: `Rename ${EVIL}`}).click();
    assert.equal(await page.getByLabel('Title of the chat').inputValue(), EVIL);
    await page.getByLabel('Title of the chat').press('Escape');
    await page.locator('nav li').first().hover();
    await page.getByRole('button', {name: `Delete ${EVIL}`}).click();
    await check(page, page.locator('.notice').filter({hasText: EVIL}));
  },
  async a_damaged_file_is_an_error_that_is_text({page}) {
    for (const id of ['__proto__', 'constructor', EVIL]) {
      const nodes = JSON.parse(`{"root": {"role": "root", "children": [${JSON.stringify(id)}]}}`);
      await page.locator('#import-file').setInputFiles(conversation({root: 'root', nodes}));
      await check(page, page.locator('.notice').filter({hasText: `conversations[0]: field 'nodes.${id}'`}), page.locator('.notice').filter({hasText: `cannot import ${EVIL}.json`}));
    }
    assert.equal(await page.evaluate(() => ({}).role), undefined);
  },
  async names_of_models_and_errors_of_the_server_are_text({page, url}) {
    await page.route('**/v1/models', route => route.fulfill({json: {data: [{id: EVIL}, {id: 'b'}]}}));
    await page.goto(url);
    await page.locator('#model option').nth(1).waitFor({state: 'attached'});
    assert.equal(await page.locator('#model option').first().textContent(), EVIL);
    await check(page, page.locator('.empty p').filter({hasText: EVIL}));
    await page.route('**/v1/chat/completions', route => route.fulfill({status: 400, json: {error: {message: EVIL}}}));
    await say(page, 'hello');
    await check(page, page.locator('.ending.error').filter({hasText: EVIL}));
    await page.route('**/v1/chat/completions', route => route.fulfill({status: 400, body: EVIL}));
    await say(page, 'again');
    await check(page, page.locator('.ending.error').filter({hasText: 'the server answered 400'}));
  },
  async a_file_and_its_name_are_text({page, network}) {
    const name = EVIL.replaceAll('/', '_');
    await page.locator('#attach-file').setInputFiles([{name, mimeType: 'text/html', buffer: Buffer.from(EVIL)}, {name: `${name}.png`, mimeType: 'image/png', buffer: Buffer.from([0, 255])}]);
    await check(page, page.getByRole('list', {name: 'Attached files'}).getByText(name), page.locator('.notice').filter({hasText: `${name}.png is not text`}));
    await say(page, EVIL);
    await until(() => network.requests.length === 1);
    await check(page, page.locator('.message.user .name').filter({hasText: name}), page.locator('.message.user .body').filter({hasText: EVIL}));
  },
  async damaged_settings_and_addresses_change_nothing({page, url}) {
    const values = [EVIL, {x: EVIL}, [1], 7, true, null];
    for (const [i, hash] of ['', '#/chat/__proto__', `#/chat/${encodeURIComponent(EVIL)}`, '#/chat/%E0%A4%A', '#javascript:window.hacked=9', `#${EVIL}`].entries()) {
      await page.evaluate(value => {
        const stored = Object.fromEntries(['temperature', 'top_p', 'max_tokens', 'system', 'think', 'theme', 'key', 'extra', 'titles', 'model', 'list', '__proto__'].map(name => [name, value]));
        localStorage['mlxcel-settings'] = JSON.stringify(stored);
      }, values[i]);
      await page.goto('about:blank');
      await page.goto(url + hash);
      await page.locator('.empty').waitFor();
      await page.locator('#settings').click();
      await page.locator('#close-settings').click();
      await check(page);
      if (typeof values[i] === 'string') continue;
      await say(page, `value ${i}`);  // with the defaults
      await answerOf(page).getByText(`You said: value ${i}`).waitFor();
      await done(page);
    }
    await page.evaluate(() => { localStorage['mlxcel-settings'] = '{'; });
    await page.goto('about:blank');
    await page.goto(url);
    await page.locator('.empty').waitFor();
  },
  async the_policy_allows_no_code_and_no_host_but_the_servers_own({page}) {
    const policies = await page.evaluate(async () => Promise.all(['/', '/page/app.js', '/page/style.css'].map(async path => (await fetch(path)).headers.get('Content-Security-Policy'))));
    for (const policy of policies) {
      const rules = Object.fromEntries(policy.split(';').map(rule => rule.trim().split(/ (.*)/s)).filter(([name]) => name));
      assert.equal(rules['default-src'], "'none'", policy);
      for (const name of ['script-src', 'connect-src']) assert.equal(rules[name], "'self'", policy);
      for (const name of ['base-uri', 'form-action', 'frame-ancestors']) assert.equal(rules[name], "'none'", policy);
      assert.equal(rules['require-trusted-types-for'], "'script'", policy);
      assert.equal(rules['trusted-types'], "'none'", policy);
      assert.ok(!/unsafe|https?:|\*/.test(policy), policy);
    }
  },
  async a_chat_of_5000_messages_opens_within_a_second({page}) {
    await page.locator('#import-file').setInputFiles(makeExport(1, 5000));
    await page.getByText('1 chats imported').waitFor();
    const opening = () => page.evaluate(() => new Promise(give => {
      const began = performance.now();
      const look = () => {
        if ([...document.querySelectorAll('.message')].at(-1)?.textContent.includes('message 4999')) give(performance.now() - began);
        else requestAnimationFrame(look);
      };
      document.querySelector('nav a.title').click();
      look();
    }));
    const loading = () => page.evaluate(() => new Promise(give => {
      const look = () => {
        if ([...document.querySelectorAll('.message')].at(-1)?.textContent.includes('message 4999')) give(performance.now());
        else requestAnimationFrame(look);
      };
      look();
    }));
    // The best of some: other tests run on the same cores.
    const times = {opening: [], loading: []};
    for (let i = 0; i < 5; ++i) {
      await page.locator('#new').click();
      await page.locator('.empty').waitFor();
      times.opening.push(await opening());
      await drawn(page);
    }
    for (let i = 0; i < 3; ++i) {
      await page.reload();
      times.loading.push(await loading());
    }
    console.log(`  ${JSON.stringify(times, (_, value) => typeof value === 'number' ? Math.round(value) : value)} ms`);
    // A reload also starts the page: a second on a quiet machine is more on a busy one.
    assert.ok(Math.min(...times.opening) < 1000 && Math.min(...times.loading) < 3000, JSON.stringify(times));
  },
};
