// Browsers for the tests of the chat page, and what the cases do in them.
import {createRequire} from 'node:module';
import {resolve} from 'node:path';
import {inspect} from 'node:util';
import assert from 'node:assert/strict';

// One process for all pages, and none that waits for a page: each case opens new ones.
const PREFERENCES = {'fission.autostart': false, 'dom.ipc.processCount': 1, 'dom.ipc.processPrelaunch.enabled': false, 'dom.ipc.keepProcessesAlive.web': 1,
  'extensions.enabledScopes': 0, 'browser.safebrowsing.enabled': false, 'toolkit.telemetry.enabled': false, 'gfx.webrender.software': true};

// |name| is chromium or firefox, |program| Debian's build of it. Firefox is driven with WebDriver BiDi.
export async function launch(playwright, name, program) {
  const library = createRequire(import.meta.url)(resolve(playwright));
  if (name === 'chromium') return library.chromium.launch({executablePath: program, args: ['--no-sandbox']});
  const browser = await library.firefox.launch({executablePath: program, channel: 'moz-firefox', firefoxUserPrefs: PREFERENCES});
  // Playwright sets a colour scheme for each context with a command that this Firefox does not have; no case needs it.
  const session = library._connection.toImpl(browser)._browserSession, send = session.send.bind(session);
  session.send = async (method, parameters) => method === 'emulation.setMediaFeaturesOverride' ? {} : send(method, parameters);
  return browser;
}

export async function say(page, text) {
  await page.locator('#input').fill(text);
  await page.locator('#send:not([disabled])').waitFor();
  await page.locator('#input').press('Enter');
  await drawn(page);
}
// Waits until what the page was told before is on the screen: it draws with the next frame, and effects run after that one.
export const drawn = page => page.evaluate(() => new Promise(give => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(give)))));
// Waits for the end of the answer to what say() sent.
export const done = page => page.locator('.message.assistant.last[aria-busy]').waitFor({state: 'detached'});
export const answerOf = page => page.locator('.message.assistant').last().locator('.body');

// The chats in the browser's database, as JSON.
export async function stored(page) {
  return page.evaluate(() => new Promise((give, fail) => {
    const opened = indexedDB.open('mlxcel', 1);
    opened.onerror = () => fail(opened.error);
    opened.onsuccess = () => {
      const all = opened.result.transaction('conversations').objectStore('conversations').getAll();
      all.onerror = () => fail(all.error);
      all.onsuccess = () => { opened.result.close(); give(JSON.stringify(all.result)); };
    };
  }));
}

// Waits until |get| gives |wanted|: a value, a function that accepts one, or nothing for any that is true. A failure names the last one.
export async function until(get, wanted = Boolean, seconds = 30) {
  const accept = typeof wanted === 'function' ? wanted : value => value === wanted;
  for (const end = Date.now() + seconds * 1000;;) {
    const last = await get();
    if (accept(last)) return;
    assert.ok(Date.now() < end, `timed out after ${seconds} s: ${get} was last ${inspect(last).slice(0, 400)}, not ${wanted}`);
    await new Promise(give => setTimeout(give, 20));
  }
}

// A file for import: |chats| conversations of |length| messages each.
export function makeExport(chats, length) {
  const conversations = Array.from({length: chats}, (_, c) => {
    const nodes = {root: {id: 'root', role: 'root', children: ['m0'], chosen: 0, content: ''}};
    for (let i = 0; i < length; ++i) {
      nodes[`m${i}`] = {id: `m${i}`, role: i % 2 ? 'assistant' : 'user', content: `message ${i} of chat ${c}`, children: i + 1 < length ? [`m${i + 1}`] : [], chosen: 0};
    }
    return {root: 'root', nodes, created: 1, updated: Date.now() - c};
  });
  return {name: 'many.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify({format: 'mlxcel-chats', conversations}))};
}
