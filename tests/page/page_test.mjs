// Tests of the chat page in a real browser, against the real server: node page_test.mjs PLAYWRIGHT NAME BROWSER MLXCEL MODEL [CASE...]
//   PLAYWRIGHT  folder of the playwright-core package
//   NAME        chromium or firefox
//   BROWSER     the program
//   MODEL       a small chat model
import {join, dirname} from 'node:path';
import {fileURLToPath} from 'node:url';
import assert from 'node:assert/strict';
import {access_cases} from './access_cases.mjs';
import {launch} from './browser.mjs';
import {chat_cases} from './chat_cases.mjs';
import {fault_cases} from './fault_cases.mjs';
import {hostile_cases} from './hostile_cases.mjs';
import {startProxy} from './proxy.mjs';
import {startServer} from './server.mjs';
import {tab_cases} from './tab_cases.mjs';
import {text_cases} from './text_cases.mjs';

const [playwright, name, program, mlxcel, model, ...chosen] = process.argv.slice(2);
const cases = {...text_cases, ...chat_cases, ...tab_cases, ...fault_cases, ...access_cases, ...hostile_cases};
for (const wanted of chosen) assert.ok(cases[wanted], `no case is named ${wanted}`);

// Servers start when a case needs them: most need the plain one only.
const flags = {
  plain: [], think: ['--chat-template', join(dirname(fileURLToPath(import.meta.url)), 'think.jinja')], locked: ['--api-key', 'secret', '--alias', `second=${model}`],
};
const started = {};
async function get(kind) {
  started[kind] ??= startProxy(await startServer(mlxcel, model, ...flags[kind]));
  return started[kind];
}

const browser = await launch(playwright, name, program);
let failed = 0, passed = 0;
for (const [title, run] of Object.entries(cases)) {
  if (chosen.length && !chosen.includes(title)) continue;
  const began = Date.now(), hosts = [], problems = [], expected = [];
  const proxy = await get(title.startsWith('reasoning') ? 'think' : 'plain');
  const locked = /^(?:the_key|each_chat)/.test(title) ? await get('locked') : null;
  const context = await browser.newContext({viewport: {width: 1100, height: 760}, acceptDownloads: true, colorScheme: name === 'firefox' ? null : undefined});
  context.setDefaultTimeout(60000);
  const watch = page => {
    page.on('request', request => { if (!/^(data:|blob:|http:\/\/127\.0\.0\.1:)/.test(request.url())) hosts.push(request.url()); });
    page.on('pageerror', error => problems.push(String(error.stack)));
    page.on('console', message => { if (['error', 'warning'].includes(message.type())) problems.push(message.text()); });
  };
  context.on('page', watch);
  await context.addInitScript(() => { if (location.protocol === 'http:') localStorage['mlxcel-settings'] ??= '{"titles": "words"}'; });
  const page = await context.newPage();
  try {
    await page.goto(proxy.url);
    await page.locator('.empty').waitFor();
    await run({page, context, name, url: proxy.url, server: proxy.server, network: proxy.network, locked, problems, expect: pattern => expected.push(pattern)});
    const left = problems.filter(text => !/status of 400/.test(text) && !expected.some(pattern => pattern.test(text)));
    assert.deepEqual(left, [], 'the console is silent');
    assert.deepEqual(hosts, [], 'no other host is asked');
    ++passed;
    console.log(`${title} ${Date.now() - began} ms`);
  } catch (error) {
    ++failed;
    console.log(`${title}\n  ${String(error.stack).split('\n').slice(0, 12).join('\n  ')}\n  ${problems.join('\n  ')}\n  FAILED`);
    if (process.env.PAGE_SHOTS) await page.screenshot({path: join(process.env.PAGE_SHOTS, `${name}-${title}.png`)}).catch(() => {});
  }
  await context.close();
  proxy.reset();
}
await browser.close();
for (const promise of Object.values(started)) {
  const proxy = await promise;
  proxy.stop();
  if (await proxy.server.stop() !== 0) console.log('a server did not end with status 0'), ++failed;
}
console.log(`${name}: ${passed} passed, ${failed} failed, 0 skipped`);
process.exit(failed ? 1 : 0);
