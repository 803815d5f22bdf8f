// Markdown to DOM. marked parses; this file builds the elements one by one, so a model's text never becomes HTML of this page.
// HTML in an answer is shown as the text that it is. highlight.js colours code, Temml draws maths.
/* global marked, hljs, temml */

// No blank line inside: LaTeX forbids it, and so a text can be parsed block by block while it arrives.
const TEX = '(?:(?!\\n[ \\t]*\\n)[\\s\\S])+?';
const MATH = [
  {name: 'blockMath', level: 'block', start: /\$\$|\\\[/, rule: new RegExp(`^(?:\\$\\$(${TEX})\\$\\$|\\\\\\[(${TEX})\\\\\\])[ \\t]*(?:\\n|$)`), display: true},
  {name: 'inlineDisplay', level: 'inline', start: /\$\$|\\\[/, rule: new RegExp(`^(?:\\$\\$([^$]+?)\\$\\$|\\\\\\[(${TEX})\\\\\\])`), display: true},
  // A dollar sign is maths only if no space follows it, none precedes the closing one, and no digit follows that: "$5 and $6" is text.
  {name: 'inlineMath', level: 'inline', start: /\$|\\\(/, rule: new RegExp(`^(?:\\$(?![\\s$])((?:\\\\.|[^$\\\\\\n])*?[^\\s$\\\\]|[^\\s$\\\\])\\$(?!\\d)|\\\\\\((${TEX})\\\\\\))`), display: false},
];
const LIVE_HIGHLIGHT = 6000;  // characters: longer code is coloured when it is complete
const MOST_HIGHLIGHT = 50000;

let parser;
function getParser() {
  parser ??= new marked.Marked({gfm: true, breaks: false}, {
    tokenizer: {html() {}, tag() {}},  // HTML is text
    extensions: MATH.map(({name, level, start, rule, display}) => ({
      name, level,
      start: source => { const at = source.search(start); return at < 0 ? undefined : at; },
      tokenizer(source) {
        const match = rule.exec(source);
        return match ? {type: name, raw: match[0], tex: match[1] ?? match[2], display} : undefined;
      },
    })),
  });
  return parser;
}

// Tokens of a text, with the link definitions that an earlier part of it made.
export function parse(text, links) {
  const marks = getParser();
  const lexer = new marked.Lexer(marks.defaults);
  Object.assign(lexer.tokens.links, links);
  const tokens = lexer.lex(text);
  return {tokens, links: tokens.links};
}

const ENTITIES = {amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', trade: '™', hellip: '…', mdash: '—', ndash: '–',
  lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”', laquo: '«', raquo: '»', bull: '•', middot: '·', times: '×', divide: '÷', plusmn: '±', deg: '°', le: '≤',
  ge: '≥', ne: '≠', rarr: '→', larr: '←', uarr: '↑', darr: '↓', harr: '↔', infin: '∞', euro: '€', pound: '£', yen: '¥', sect: '§', para: '¶', micro: 'µ'};
function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/g, (all, decimal, hex, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : all;
    const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
    return code > 8 && code < 0x110000 && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : all;
  });
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function link(token, children) {
  if (!/^(?:https?:|mailto:)/i.test(token.href)) return [token.raw];
  const element = make('a', '', ...children);
  element.href = token.href;
  element.target = '_blank';
  element.rel = 'noopener noreferrer nofollow';
  if (token.title) element.title = decode(token.title);
  return [element];
}

function math(token) {
  const span = make('span', 'math');
  span.dataset.display = token.display;
  try {
    temml.render(token.tex, span, {displayMode: token.display, throwOnError: true, trust: false, maxExpand: 500, maxSize: [20, 20]});
  } catch {
    span.className = 'math-error';
    span.textContent = token.raw;
  }
  return span;
}

function inline(tokens = []) {
  return tokens.flatMap(token => {
    switch (token.type) {
      case 'strong': case 'em': case 'del': return [make(token.type, '', ...inline(token.tokens))];
      case 'codespan': return [make('code', '', token.text)];
      case 'br': return [make('br')];
      case 'link': return link(token, inline(token.tokens));
      case 'image': return link(token, [`🖼 ${decode(token.text) || token.href}`]);  // nothing is loaded from other hosts
      case 'inlineMath': case 'inlineDisplay': return [math(token)];
      case 'escape': return [token.text];
      case 'checkbox': return [taskBox(token)];
      case 'text': return token.tokens ? inline(token.tokens) : [decode(token.text)];
      default: return [token.raw];
    }
  });
}

function taskBox(token) {
  const box = make('input', 'task');
  box.type = 'checkbox';
  box.disabled = true;
  box.checked = token.checked;
  box.toggleAttribute('checked', token.checked);
  box.setAttribute('aria-label', token.checked ? 'done' : 'to do');
  return box;
}

// highlight.js gives a tree of scopes; its HTML is not used.
function coloured(tree) {
  return tree.children.map(child => {
    if (typeof child === 'string') return document.createTextNode(child);
    const [first, ...rest] = (child.scope ?? '').split('.');
    const classes = child.scope?.startsWith('language:') ? '' : [`hljs-${first}`, ...rest.map((name, i) => name + '_'.repeat(i + 1))].join(' ');
    return make('span', classes, ...coloured(child));
  });
}

export function codeBlock(text, info, live) {
  const language = /^[\w+#.-]+/.exec(info)?.[0] ?? '';
  const code = make('code', language ? `language-${language}` : '');
  if (language && hljs.getLanguage(language) && text.length < (live ? LIVE_HIGHLIGHT : MOST_HIGHLIGHT)) {
    code.append(...coloured(hljs.highlight(text, {language, ignoreIllegals: true})._emitter.rootNode));
    code.classList.add('hljs');
  } else {
    code.textContent = text;
  }
  const copy = make('button', 'copy', 'Copy'), save = make('button', 'save', 'Save');
  copy.type = save.type = 'button';
  const pre = make('pre', '', code);
  pre.tabIndex = 0;  // the arrow keys scroll it
  return make('div', 'code', make('div', 'code-bar', make('span', '', info), save, copy), pre);
}

// A row with more cells than the head has keeps them; GFM would drop them.
function cellsOf(row, raw, count) {
  const parts = raw.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '').split(/(?<!\\)\|/).slice(count).map(text => text.trim()).filter(Boolean);
  return [...row, ...parts.map(text => ({text, tokens: [{type: 'text', raw: text, text}], align: null}))];
}

function table(token) {
  const lines = token.raw.split('\n').slice(2);
  const cell = (tag, {tokens, align}) => {
    // A line break is what <br> means in a cell, which can have no other.
    const element = make(tag, align ? `align-${align}` : '');
    for (const part of inline(tokens)) {
      if (typeof part !== 'string') element.append(part);
      else part.split(/<br ?\/?>/i).forEach((text, i) => { if (i) element.append(make('br')); element.append(text); });
    }
    return element;
  };
  const rows = token.rows.map((row, i) => make('tr', '', ...cellsOf(row, lines[i] ?? '', token.header.length).map(part => cell('td', part))));
  const head = make('tr', '', ...token.header.map(part => { const th = cell('th', part); th.scope = 'col'; return th; }));
  const box = make('div', 'table', make('table', '', make('thead', '', head), make('tbody', '', ...rows)));
  box.tabIndex = 0;
  return box;
}

export function listItem(item, live) {
  return make('li', item.task ? 'has-task' : '', ...item.tokens.flatMap(token => {
    if (token.type === 'checkbox') return [taskBox(token)];
    return token.type === 'text' ? inline(token.tokens ?? [token]) : block(token, live);
  }));
}

// The elements of a block token: one, or none for blank lines.
export function block(token, live) {
  switch (token.type) {
    case 'space': return [];
    case 'code': return [codeBlock(token.text, token.lang ?? '', live)];
    case 'heading': return [make(`h${token.depth}`, '', ...inline(token.tokens))];
    case 'hr': return [make('hr')];
    case 'blockquote': return [make('blockquote', '', ...token.tokens.flatMap(child => block(child, live)))];
    case 'list': {
      const list = make(token.ordered ? 'ol' : 'ul', '', ...token.items.map(item => listItem(item, live)));
      if (token.ordered && token.start !== 1) list.start = token.start;
      return [list];
    }
    case 'table': return [table(token)];
    case 'blockMath': return [math(token)];
    case 'paragraph': return [make('p', /^<[a-z!/?]/i.test(token.raw) ? 'markup' : '', ...inline(token.tokens))];
    case 'text': return [make('p', '', ...inline(token.tokens ?? [token]))];
    default: return [make('p', 'markup', token.raw)];  // definitions of links, which are text of the answer too
  }
}
