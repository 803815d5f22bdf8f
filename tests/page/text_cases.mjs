// Answers as text: markdown, HTML, code, maths, JSON, tool calls, and text that grows.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {answerOf, done, say, until} from './browser.mjs';
import {HOSTILE} from './proxy.mjs';

// Texts whose words must all be shown, in order. Marks of markdown are no words.
const WORDS = [
  'A List<String> or `vector<int>`; a<b and c>d <form> <div class="x">deep</div> <!-- note -->',
  '<details>\n<summary>More</summary>\n\nhidden **text**\n</details>\n\n<br>\n\n<script>alert(1)</script>\n\n<think>why</think> so',
  '| a | b |\n| - | - |\n| 1 | 2 | three | four |\n| x<br>y | p\\|q |',
  '[1]: https://example.org/x "title"\n\nSee [1] and [text](javascript:no) and ![picture](relative.png) and <https://a.example/b>',
  '- [ ] open\n- [x] closed\n\n7. seven\n8. eight', '&lt;tag&gt; &unknown; &#65; AT&T', '$$\\frac{1}{$$ and \\(\\bad{x}\\)', '```js title=a.js\nlet a = "<b>";\n```', '~~gone~~ *a* __b__',
  '{"broken": [1, 2', '[{"a": 1.0000000000000000001, "a": "\\u00e9"}]',
];

const LONG = Array.from({length: 80}, (_, i) => [`## Part ${i}`, '', `Text ${i} with **bold** and \`code\`. ${'More words follow here. '.repeat(20)}`, '', `1. one ${i}`, '2. two', '',
  '```python', `def f${i}(x):`, '    return x', '', `print(f${i}(1))`, '```', '', '| a | b |', '| - | - |', `| ${i} | 2 |`, ''].join('\n')).join('\n');

export const text_cases = {
  async markdown_code_and_maths_are_rendered({page}) {
    await say(page, 'markdown');
    await page.locator('.message.assistant h1', {hasText: 'Title'}).waitFor();
    await done(page);
    assert.equal(await page.locator('.message.assistant math').count(), 2);
    assert.match(await answerOf(page).locator('p').first().textContent(), /it costs \$5 or \$6/);
    assert.ok(await page.locator('code .hljs-keyword').count() > 0);
    assert.equal(await page.locator('.table td').count(), 2);
    await page.locator('button.copy').click();
    await page.locator('button.copy', {hasText: 'Copied'}).waitFor();
    await page.locator('#announce', {hasText: 'Copied'}).waitFor({state: 'attached'});
  },
  async code_is_saved_as_a_file({page, name}) {
    const names = await page.evaluate(async () => {
      const {nameOfCode} = await import('/page/clipboard.js');
      return ['python', 'js title=a.js', 'C++', '', 'sh file="../../etc/x.sh"', 'title=.bashrc', '<b>'].map(nameOfCode);
    });
    assert.deepEqual(names, ['code.py', 'a.js', 'code.cpp', 'code.txt', 'code.sh', 'bashrc', 'code.txt']);
    if (name !== 'chromium') return;  // Playwright has no downloads over WebDriver BiDi in Firefox
    await say(page, 'markdown');
    await done(page);
    const [saved] = await Promise.all([page.waitForEvent('download'), page.locator('button.save').click()]);
    assert.equal(saved.suggestedFilename(), 'code.py');
    assert.equal(readFileSync(await saved.path(), 'utf8'), 'def f(x):\n    return x + 1');
  },
  async html_is_text_and_task_boxes_are_drawn({page}) {
    await say(page, 'html');
    await done(page);
    const text = await answerOf(page).textContent();
    assert.ok(text.includes('A List<String> or vector<int>; a<b and c>d') && text.includes('<form>'), text);
    assert.deepEqual(await answerOf(page).locator('input[type=checkbox]').evaluateAll(boxes => boxes.map(box => box.checked)), [false, true]);
    assert.equal(await page.locator('main form').count(), 0);
  },
  async no_word_of_an_answer_is_lost({page}) {
    const shown = await page.evaluate(async texts => {
      const {LiveText} = await import('/page/live_text.js');
      return texts.map(text => {
        const element = document.createElement('div');
        new LiveText(element).update(text, false);
        return element.textContent + [...element.querySelectorAll('a')].map(a => ` ${a.href} ${a.title}`).join('');
      });
    }, WORDS);
    WORDS.forEach((text, i) => {
      // Entities, marks of lists and a line break in a cell are drawn, not written.
      const words = text.replace(/&lt;|&gt;|&#65;|^\d+\. |^- \[.\]|(?<=^\|.*)<br>/gm, ' ').match(/[a-zA-Z0-9.]*[a-zA-Z0-9]/g);
      const missing = words.filter(word => !shown[i].includes(word));
      assert.deepEqual(missing, [], `${text}\nis shown as\n${shown[i]}`);
    });
  },
  async hostile_markdown_runs_nothing_and_contacts_no_other_host({page}) {
    await say(page, 'hostile');
    await done(page);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator('main script, main iframe, main img, main form, main style, .body svg').count(), 0);
    assert.equal(await page.locator('main a[href^="javascript"]').count(), 0);
    assert.equal(await page.locator('#app').count(), 1);
    assert.ok(await page.locator('#input').isVisible());
    assert.ok((await answerOf(page).textContent()).includes(HOSTILE.split('\n')[0]));
    // The same text inside other blocks; hostile_cases.mjs has the other ways into the page.
    await page.evaluate(async hostile => {
      const {LiveText} = await import('/page/live_text.js');
      for (const text of [hostile, `> ${hostile}`, `- ${hostile}`, `# ${hostile}`, `| ${hostile.replaceAll('\n', ' ')} |\n| - |\n`, '```html\n' + hostile]) {
        const element = document.createElement('div');
        document.querySelector('main').append(element);
        new LiveText(element).update(text, false);
        element.remove();
      }
    }, HOSTILE);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
  },
  async the_browser_refuses_to_make_html_of_text({page, problems, name}) {
    const refused = await page.evaluate(() => {
      try { document.createElement('div').innerHTML = '<b>x</b>'; } catch (error) { return error.name; }
      return 'nothing';
    });
    assert.equal(refused, 'TypeError', name);
    problems.length = 0;  // the browser reports it, as it should
  },
  async a_growing_answer_renders_its_last_block_only({page}) {
    assert.ok(LONG.length > 49000, String(LONG.length));
    const {steps, blocks, equal, total} = await page.evaluate(async text => {
      const {LiveText, counts} = await import('/page/live_text.js');
      const growing = document.createElement('div'), whole = document.createElement('div');
      const view = new LiveText(growing), before = counts.blocks;
      let steps = 0;
      for (let end = 0; end < text.length; end += 23, ++steps) view.update(text.slice(0, end), true);
      view.update(text, false);
      const blocks = counts.blocks - before;
      new LiveText(whole).update(text, false);
      return {steps, blocks, equal: growing.isEqualNode(whole), total: whole.children.length};
    }, LONG);
    assert.ok(total === 400, String(total));
    assert.ok(equal, 'the text that grew is not the text that was rendered at once');
    assert.ok(blocks <= 1.5 * steps, `${blocks} blocks for ${steps} steps`);  // a step renders the last block, and may begin a new one
  },
  async text_that_grows_by_one_character_looks_as_if_it_came_at_once({page}) {
    const odd = ['a\n#\n#b', '1. a\n\n2\n\n2. b\n   - c\n\n     d\n\ne', '- a\n\n      code\n\n- b', 'x\n---\ny\n===\n\n| a |\n| - |\n| b |\nc', '[x][y] and\n\nmore\n\nthird\n\n[y]: https://e.example',
      '$$a\n\nb$$ c\n\n$$\nx\n$$', '```\na\n\nb\n```\n> q\nlazy\n\n> r', '    code\n\n    more\ntext\r\n\r\nend', '{"a": [1,\n2]}', '[link](https://e.example) x\n\n* * *\n* a\n*b*'].concat(WORDS);
    const different = await page.evaluate(async texts => {
      const {LiveText} = await import('/page/live_text.js');
      return texts.filter(text => {
        const growing = document.createElement('div'), whole = document.createElement('div'), view = new LiveText(growing);
        for (let end = 1; end <= text.length; ++end) view.update(text.slice(0, end), true);
        view.update(text, false);
        new LiveText(whole).update(text, false);
        return !growing.isEqualNode(whole);
      });
    }, odd);
    assert.deepEqual(different, []);
  },
  async json_answers_are_indented_and_copied_as_they_are({page}) {
    await say(page, 'json');
    await done(page);
    const code = answerOf(page).locator('code.language-json');
    assert.equal(await code.textContent(), '{\n  "name": "x",\n  "list": [\n    1,\n    12345678901234567890\n  ],\n  "empty": {}\n}');
  },
  async arguments_that_are_not_json_keep_their_words({page}) {
    const texts = ['rm -rf "a b" x', '{"command": rm -rf x}', '{"a": 1', '[1, 2 3]'];
    const shown = await page.evaluate(async list => {
      const {formatJson} = await import('/page/json_text.js');
      return list.map(formatJson);
    }, texts);
    assert.deepEqual(shown, ['rm -rf "a b" x', '{\n  "command": rm -rf x\n}', '{\n  "a": 1', '[\n  1,\n  2 3\n]']);
  },
  async tool_calls_are_shown_readably({page}) {
    await say(page, 'call');
    const call = page.getByRole('region', {name: 'Tool call weather'});
    await call.waitFor();
    await done(page);
    assert.equal(await call.locator('code').textContent(), '{\n  "city": "Oslo",\n  "days": [\n    1,\n    2\n  ]\n}');
  },
  async reasoning_is_folded({page}) {
    await say(page, 'think');
    await page.locator('.reasoning summary').waitFor();
    await done(page);
    assert.equal(await page.locator('.reasoning').evaluate(node => node.open), false);
    await page.locator('.reasoning summary').click();
    await until(() => page.locator('.reasoning').textContent(), text => text.length > 30);
  },
};
