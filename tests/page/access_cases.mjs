// Keyboard, screen readers, contrast and sizes of screens.
import assert from 'node:assert/strict';
import {answerOf, done, drawn, say, until} from './browser.mjs';

const focused = page => page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent);

// Texts whose contrast with what lies behind them is below 4.5, and controls without a name.
function findFaults() {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const backOf = element => {
    for (let at = element; at; at = at.parentElement) {
      const back = rgba(getComputedStyle(at).backgroundColor);
      if (back[3] > 250) return back;
    }
    return [255, 255, 255];
  };
  const faults = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data.trim()).join('');
    if (!text || !element.checkVisibility({opacityProperty: true}) || element.closest(':disabled, .unseen, math, option')) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(backOf(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) faults.push(`${contrast.toFixed(2)}: ${element.tagName}.${element.className} "${text.slice(0, 40)}"`);
  }
  for (const control of document.querySelectorAll('button, input, textarea, select, a, summary')) {
    const name = control.getAttribute('aria-label') || control.textContent.trim() || control.labels?.[0]?.textContent.trim();
    if (!name) faults.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  }
  return faults;
}

export const access_cases = {
  async keyboard_works_without_a_mouse({page}) {
    await until(() => focused(page), 'input');
    await page.keyboard.type('typed');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('two lines');
    await page.keyboard.press('Enter');
    await answerOf(page).getByText('You said: typed').waitFor();
    await done(page);
    await page.locator('#input').focus();
    await page.keyboard.press('ArrowUp');
    await page.locator('.editor textarea').waitFor();
    await page.keyboard.press('Escape');
    await page.locator('.editor textarea').waitFor({state: 'detached'});
    await page.keyboard.press('Control+k');
    await until(() => focused(page), 'search');
    await page.keyboard.press('Tab');
    assert.equal(await focused(page), 'typed');  // the chat, a link
    await page.keyboard.press('F2');
    await until(() => focused(page), 'Title of the chat');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+Shift+O');
    await until(() => focused(page), 'input');
  },
  async the_settings_keep_the_focus_and_give_it_back({page}) {
    await page.locator('#settings').focus();
    await page.keyboard.press('Enter');
    const dialog = page.getByRole('dialog', {name: 'Settings'});
    await dialog.waitFor();
    for (let i = 0; i < 48; ++i) {
      await page.keyboard.press(i < 24 ? 'Tab' : 'Shift+Tab');
      // Between the last control and the first, the focus is on the browser's own controls; it is never on the page behind.
      assert.ok(await page.evaluate(() => document.activeElement === document.body || !!document.activeElement.closest('dialog')), `after ${i + 1} tabs: ${await focused(page)}`);
    }
    await page.keyboard.press('Escape');
    await dialog.waitFor({state: 'detached'});
    await drawn(page);
    await until(() => focused(page), 'settings');
    // The button that opens the second dialog is gone when that closes.
    await page.locator('#settings').click();
    await page.locator('#change-key').click();
    await page.getByRole('dialog', {name: 'API key'}).waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({state: 'detached'});
    await drawn(page);
    await until(() => focused(page), 'settings');
  },
  async screen_readers_get_roles_names_and_states({page}) {
    await page.evaluate(() => {
      window.said = [];
      new MutationObserver(() => window.said.push(document.getElementById('announce').textContent)).observe(document.getElementById('announce'), {childList: true, characterData: true, subtree: true});
    });
    await say(page, 'html');
    await done(page);
    await page.locator('#announce', {hasText: /^Answer: A List<String>/}).waitFor({state: 'attached'});
    assert.ok((await page.evaluate(() => window.said)).includes('Answering'));
    assert.equal(await page.locator('#announce').getAttribute('aria-live'), 'polite');
    const tree = await page.locator('body').ariaSnapshot();
    for (const line of ['- navigation "Chats":', '- button "New chat"', '- searchbox "Search chats"', '- heading "html" [level=1]', '- button "Settings"', '- main "Messages":',
      '- article "You":', /- article "Answer of SmolLM2/, '- checkbox "to do" [disabled]', '- checkbox "done" [checked] [disabled]', '- button "Copy"', '- button "Regenerate"',
      '- form "Write a message":', '- textbox "Message"', '- button "Attach text files"', '- button "Send" [disabled]', '- link "html"', '- button "Delete html"']) {
      assert.ok(line instanceof RegExp ? line.test(tree) : tree.includes(line), `${line} is missing in\n${tree}`);
    }
  },
  async contrast_is_at_least_4_5_and_each_control_has_a_name({page}) {
    await say(page, 'markdown');
    await page.locator('.message.assistant table').waitFor();
    await done(page);
    for (const theme of ['light', 'dark']) {
      await page.evaluate(value => { document.documentElement.dataset.theme = value; }, theme);
      assert.deepEqual(await page.evaluate(findFaults), [], theme);
    }
    await page.locator('#settings').click();
    await page.getByRole('dialog', {name: 'Settings'}).waitFor();
    for (const theme of ['light', 'dark']) {
      await page.evaluate(value => { document.documentElement.dataset.theme = value; }, theme);
      assert.deepEqual(await page.evaluate(findFaults), [], `settings, ${theme}`);
    }
  },
  async the_end_of_an_answer_moves_nothing({page}) {
    await say(page, 'hello');
    await answerOf(page).getByText('You said: hello').waitFor();
    await done(page);
    await page.evaluate(() => {
      window.moves = [];
      let before = null;
      const watch = () => {
        const user = document.querySelector('.message.user').getBoundingClientRect().top, field = document.querySelector('.field').getBoundingClientRect().top;
        if (before && (user !== before[0] || field !== before[1])) window.moves.push([user, field]);
        before = [user, field];
        requestAnimationFrame(watch);
      };
      watch();
    });
    await say(page, 'again');
    await answerOf(page).getByText('You said: again').waitFor();
    await done(page);
    assert.deepEqual(await page.evaluate(() => window.moves), []);
  },
  async the_list_of_chats_can_be_hidden({page}) {
    await page.locator('#close-menu').click();
    await page.locator('nav').waitFor({state: 'hidden'});
    await until(async () => await focused(page) === 'menu');
    await page.reload();
    await page.locator('#input').waitFor();
    assert.ok(!await page.locator('nav').isVisible());
    await page.keyboard.press('Control+k');
    await until(async () => await focused(page) === 'search');
    assert.ok(!await page.locator('#menu').isVisible());
    await page.locator('#close-menu').click();
    await page.locator('#menu').click();
    await until(async () => await focused(page) === 'close-menu');
  },
  async phone_width_has_no_sideways_scrolling({page}) {
    await page.setViewportSize({width: 360, height: 740});
    await say(page, 'markdown');
    await page.locator('.message.assistant h1').waitFor();
    await done(page);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    assert.ok(!await page.locator('nav').isVisible());
    await page.locator('#menu').click();
    await page.locator('nav.open').waitFor();
    await page.locator('#new').click();
    await page.locator('.empty').waitFor();
  },
  async dark_colours_are_applied_and_kept({page}) {
    await page.locator('#settings').click();
    await page.locator('select[name=theme]').selectOption('dark');
    await page.locator('#close-settings').click();
    await page.reload();
    await page.locator('#input').waitFor();
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(22, 24, 28)');
  },
};
