// Copying and saving of texts.
import {announce} from './state.js';

// Endings of files; other languages have their own name as the ending.
const ENDINGS = {bash: 'sh', shell: 'sh', console: 'sh', python: 'py', javascript: 'js', typescript: 'ts', markdown: 'md', rust: 'rs', ruby: 'rb', 'c++': 'cpp',
  csharp: 'cs', 'c#': 'cs', kotlin: 'kt', yaml: 'yml', plaintext: 'txt', text: 'txt', powershell: 'ps1', perl: 'pl', haskell: 'hs', dockerfile: 'txt', makefile: 'txt', '': 'txt'};

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
  announce('Copied');
}

export function download(name, text, type) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The name in a title of the block's first line ("```js title=a.js"), or code.ENDING. A name has no folder.
export function nameOfCode(info) {
  const title = /\b(?:title|filename|file)=["']?([\w.+-]+)/.exec(info)?.[1]?.replace(/^\.+/, '');
  const language = /^[\w+#-]+/.exec(info)?.[0].toLowerCase() ?? '';
  return title || `code.${ENDINGS[language] ?? language.replace(/\W/g, '')}`;
}

// The buttons of a code block, which are no components.
export function saveCode(button) {
  const block = button.closest('.code');
  download(nameOfCode(block.querySelector('.code-bar span').textContent), block.querySelector('code').textContent, 'text/plain');
}
export async function copyCode(button) {
  await copyText(button.closest('.code').querySelector('code').textContent);
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}
