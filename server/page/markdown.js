// Markdown to DOM: marked parses, DOMPurify removes everything active, highlight.js and Temml decorate the result.
/* global marked, DOMPurify, hljs, temml */

const MATH = [
  {name: 'blockMath', level: 'block', start: /\$\$|\\\[/, rule: /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/, display: true},
  {name: 'inlineDisplay', level: 'inline', start: /\$\$|\\\[/, rule: /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\])/, display: true},
  // A dollar sign is maths only if no space follows it, none precedes the closing one, and no digit follows that: "$5 and $6" is text.
  {name: 'inlineMath', level: 'inline', start: /\$|\\\(/, rule: /^(?:\$(?![\s$])((?:\\.|[^$\\\n])*?[^\s$\\]|[^\s$\\])\$(?!\d)|\\\(([\s\S]+?)\\\))/, display: false},
];

const escapeHtml = text => text.replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);

let parser;
function getParser() {
  parser ??= new marked.Marked({gfm: true, breaks: false}, {
    extensions: MATH.map(({name, level, start, rule, display}) => ({
      name, level,
      start: source => { const at = source.search(start); return at < 0 ? undefined : at; },
      tokenizer(source) {
        const match = rule.exec(source);
        return match ? {type: name, raw: match[0], tex: match[1] ?? match[2]} : undefined;
      },
      renderer: token => `<span class="math" data-display="${display}" data-tex="${escapeHtml(token.tex)}"></span>`,
    })),
  });
  return parser;
}

const POLICY = {
  RETURN_DOM_FRAGMENT: true,
  FORBID_TAGS: ['style', 'form', 'input', 'button', 'textarea', 'select', 'img', 'picture', 'video', 'audio', 'source', 'svg', 'math', 'iframe', 'template'],
  FORBID_ATTR: ['style', 'id', 'name', 'srcset', 'action', 'background', 'poster'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};

function decorateCode(pre) {
  const code = pre.querySelector('code');
  if (!code) return;
  const language = /language-([\w+#.-]+)/.exec(code.className)?.[1] ?? '';
  if (language && hljs.getLanguage(language) && code.textContent.length < 50000) {
    code.innerHTML = hljs.highlight(code.textContent, {language, ignoreIllegals: true}).value;  // highlight.js escapes the text
    code.classList.add('hljs');
  }
  const bar = document.createElement('div');
  bar.className = 'code-bar';
  const name = document.createElement('span');
  name.textContent = language;
  const copy = document.createElement('button');
  copy.type = 'button';
  copy.className = 'copy';
  copy.textContent = 'Copy';
  bar.append(name, copy);
  pre.prepend(bar);
}

// Renders |text| into |element|.
export function renderMarkdown(element, text) {
  const fragment = DOMPurify.sanitize(getParser().parse(text), POLICY);
  for (const link of fragment.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
  }
  for (const table of fragment.querySelectorAll('table')) {
    const box = document.createElement('div');
    box.className = 'table';
    table.replaceWith(box);
    box.append(table);
  }
  for (const span of fragment.querySelectorAll('span.math')) {
    try {
      temml.render(span.dataset.tex, span, {displayMode: span.dataset.display === 'true', throwOnError: true, trust: false, maxExpand: 500, maxSize: [20, 20]});
    } catch {
      span.className = 'math-error';
      span.textContent = span.dataset.tex;
    }
  }
  fragment.querySelectorAll('pre').forEach(decorateCode);
  element.replaceChildren(fragment);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no permission, or not a secure context
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}
