// Copying, with an answer that it worked.
import {announce} from './state.js';

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

// The button of a code block, which is not a component.
export async function copyCode(button) {
  await copyText(button.closest('.code').querySelector('code').textContent);
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}
