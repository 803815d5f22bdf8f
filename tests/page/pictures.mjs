// Takes the pictures of docs/images from the real page: node pictures.mjs PLAYWRIGHT CHROMIUM MLXCEL MODEL FOLDER. bench/chat_picture.py runs it.
import {join} from 'node:path';
import {done, launch, say, until} from './browser.mjs';
import {startProxy} from './proxy.mjs';
import {startServer} from './server.mjs';

const [playwright, program, mlxcel, model, folder] = process.argv.slice(2);
const QUESTIONS = {
  'What is the difference between TCP and UDP?': ['TCP delivers a stream of bytes, complete and in order. UDP sends single packets and promises nothing.', '',
    '| | TCP | UDP |', '| - | - | - |', '| connection | yes | no |', '| order | kept | not kept |', '| loss | sent again | up to the program |', '', 'Use **UDP** where late data is useless: calls, games, DNS.'].join('\n'),
  'How do I find files with the same content in Python?': ['Group the files by a hash of their content. Files with the same hash are equal.', '', '```python', 'import hashlib, pathlib, sys', '',
    'groups = {}', 'for file in pathlib.Path(sys.argv[1]).rglob("*"):', '    if file.is_file():', '        key = hashlib.sha256(file.read_bytes()).hexdigest()', '        groups.setdefault(key, []).append(file)', '',
    'for files in groups.values():', '    if len(files) > 1:', '        print(*files, sep="\\n")', '```', '', 'For $n$ files of size $s$ this reads $n \\cdot s$ bytes. Compare sizes first:', '',
    '- [x] hash the content', '- [ ] skip files whose `st_size` is unique'].join('\n'),
};

const browser = await launch(playwright, 'chromium', program);
const server = await startServer(mlxcel, model), proxy = await startProxy(server);
proxy.network.looks = QUESTIONS;
const context = await browser.newContext({viewport: {width: 1100, height: 760}});
await context.addInitScript(() => { if (location.protocol === 'http:') localStorage['mlxcel-settings'] ??= '{"titles": "words"}'; });
const page = await context.newPage();
await page.goto(proxy.url);
for (const question of Object.keys(QUESTIONS)) {
  await page.locator('#new').click();
  await say(page, question);
  await page.locator('.message.assistant').waitFor();
  await done(page);
}
const shot = async (name, theme) => {
  await page.evaluate(value => { document.documentElement.dataset.theme = value; }, theme);
  await page.screenshot({path: join(folder, name)});
};
await shot('page.png', 'light');
await shot('page-dark.png', 'dark');
await page.setViewportSize({width: 390, height: 780});
await page.locator('nav').waitFor({state: 'hidden'});
await until(() => page.locator('main').evaluate(main => { main.scrollTop = main.scrollHeight; return true; }));
await shot('page-phone.png', 'light');
if (process.env.PAGE_ALL) {  // for a look at the rest
  await page.locator('#menu').click();
  await page.waitForTimeout(300);
  await shot('page-phone-menu.png', 'dark');
  await page.locator('#close-menu').click();
  await page.locator('#settings').click();
  await shot('page-phone-settings.png', 'light');
  await page.setViewportSize({width: 1100, height: 760});
  await shot('page-settings.png', 'dark');
}
await browser.close();
proxy.stop();
process.exit(await server.stop());
