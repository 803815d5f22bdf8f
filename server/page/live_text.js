// Shows a text that grows, such as an answer that streams: only its last block is rendered again.
import {block, codeBlock, listItem, parse} from './markdown.js';
import {formatJson, looksLikeJson} from './json_text.js';

export const counts = {blocks: 0};  // rendered so far; a test reads it

const isList = token => token.type === 'list';
const sameList = (a, b) => isList(a) && isList(b) && a.ordered === b.ordered && a.start === b.start && a.loose === b.loose;
const isOpenCode = (old, token, live) => live && old.live && old.token.type === 'code' && token.type === 'code' && old.token.lang === token.lang &&
  token.text.startsWith(old.token.text) && !old.elements[0].querySelector('.hljs');

export class LiveText {
  constructor(element) {
    this.element = element;
    this.reset();
  }

  reset() {
    this.element.replaceChildren();
    this.text = '';
    this.start = 0;      // of the part that may still be parsed in another way
    this.settled = 0;    // blocks before it
    this.blocks = [];    // {token, elements, live}
    this.links = {};     // definitions in the settled part
    this.json = null;
    this.known = '{}';   // all definitions, which links everywhere use
  }

  update(source, live) {
    const text = source.replace(/\r\n?/g, '\n');
    if (looksLikeJson(text, live)) {
      this.showJson(text, live);
      return;
    }
    if (this.json !== null || !text.startsWith(this.text)) this.reset();
    this.text = text;
    let {tokens, links} = parse(text.slice(this.start), this.links);
    const known = JSON.stringify(links);
    if (known !== this.known) {  // links of earlier blocks may change
      this.reset();
      Object.assign(this, {text, known});
      ({tokens, links} = parse(text, {}));
    }
    this.place(tokens, live);
    this.settle(tokens, links);
  }

  // JSON is indented for reading; each character that is not white space stays.
  showJson(text, live) {
    if (this.json === text && !live) return;
    this.reset();
    this.json = text;
    this.element.append(codeBlock(formatJson(text), 'json', live));
    counts.blocks += 1;
  }

  place(tokens, live) {
    const shown = tokens.filter(token => token.type !== 'space');
    shown.forEach((token, i) => {
      const at = this.settled + i, old = this.blocks[at], isLive = live && i === shown.length - 1;
      if (old && old.token.raw === token.raw && old.token.type === token.type && (old.live === isLive || token.type !== 'code')) {
        old.live = isLive;
        return;
      }
      if (old && isOpenCode(old, token, isLive)) {
        const code = old.elements[0].querySelector('code');
        code.append(token.text.slice(old.token.text.length));
        if (code.childNodes.length > 200) code.normalize();
        old.token = token;
        return;
      }
      if (old && sameList(old.token, token)) {
        this.placeItems(old, token, isLive);
        return;
      }
      counts.blocks += 1;
      const elements = block(token, isLive);
      if (old) {
        old.elements[0].before(...elements);
        old.elements.forEach(element => element.remove());
      } else {
        this.element.append(...elements);
      }
      this.blocks[at] = {token, elements, live: isLive};
    });
    for (const {elements} of this.blocks.splice(this.settled + shown.length)) elements.forEach(element => element.remove());
  }

  placeItems(old, token, live) {
    const [list] = old.elements;
    token.items.forEach((item, i) => {
      const before = old.token.items[i];
      if (before && before.raw === item.raw && before.loose === item.loose) return;
      counts.blocks += 1;
      const element = listItem(item, live);
      if (before) list.children[i].replaceWith(element);
      else list.append(element);
    });
    while (list.children.length > token.items.length) list.lastChild.remove();
    old.token = token;
    old.live = live;
  }

  // Text after a blank line can continue the block before it (a list), never one further up: all before the last two groups is settled.
  settle(tokens, links) {
    const starts = [];  // of groups of blocks without a blank line between them
    let offset = 0, blocks = 0, isAfterBlank = true;
    for (const [index, token] of tokens.entries()) {
      if (token.type === 'space') {
        isAfterBlank = true;
      } else {
        if (isAfterBlank) starts.push({offset, blocks, tokens: index});
        isAfterBlank = false;
        blocks += 1;
      }
      offset += token.raw.length;
    }
    if (starts.length < 3) return;
    const {offset: end, blocks: count, tokens: before} = starts.at(-2);
    for (const token of tokens.slice(0, before)) if (token.type === 'def') this.links[token.tag] = links[token.tag];
    this.start += end;
    this.settled += count;
  }
}
