// Settings, and the key of the server.
import {html, useEffect, useRef, useState} from './htm.js';
import {loadServer, retryUnanswered} from './answers.js';
import {getJson} from './api.js';
import {DEFAULTS} from './store.js';
import {focusInput, keep, refresh, set, setSettings, state} from './state.js';

// The browser keeps the focus inside a modal dialog, closes it with Escape and gives the focus back to the element that had it.
function Dialog({label, onClose, children}) {
  const element = useRef();
  useEffect(() => { element.current.showModal(); }, []);
  const closed = () => {
    set({dialog: null});
    onClose?.();
    if (document.activeElement === document.body) focusInput();
  };
  return html`<dialog ref=${element} aria-label=${label} onClose=${closed} onClick=${event => event.target === element.current && element.current.close()}>
    <div class="inside">${children}</div></dialog>`;
}
const close = event => event.target.closest('dialog').close();

const FIELDS = [
  ['temperature', 'Temperature', '0 to 2; 0: always the most likely token'], ['top_p', 'Top-p', '0 to 1'], ['top_k', 'Top-k', 'tokens to keep; 0: all'],
  ['max_tokens', 'Answer limit', 'tokens'], ['seed', 'Seed', 'the same seed gives the same answer'],
];
const KEYS = [['Enter', 'send'], ['Shift+Enter', 'new line'], ['↑', 'edit the last message'], ['Esc', 'stop'], ['Ctrl+Shift+O', 'new chat'], ['Ctrl+K', 'search'],
  ['F2, Del', 'rename, delete in the list']];

function isJson(text) {
  try {
    return !text.trim() || typeof JSON.parse(text) === 'object';
  } catch {
    return false;
  }
}

export function Settings() {
  const {settings} = state;
  const input = name => event => setSettings({[name]: event.target.value});
  const setSystem = event => {
    setSettings({system: event.target.value});
    if (!state.conversations.includes(state.current)) state.current.system = event.target.value;
  };
  const setChatSystem = event => { state.current.system = event.target.value; if (state.conversations.includes(state.current)) keep(state.current, true); refresh(); };
  const choice = (name, label, values) => html`<label>${label}<select name=${name} value=${settings[name]} onChange=${input(name)}>
    ${values.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select></label>`;
  return html`<${Dialog} label="Settings" onClose=${loadServer}>
    <h2>Settings</h2>
    ${choice('theme', 'Colours', [['system', 'as the system'], ['light', 'light'], ['dark', 'dark']])}
    ${choice('titles', 'Titles of chats', [['model', 'written by the model'], ['words', 'the first words']])}
    ${choice('think', 'Reasoning', [['default', 'as the model'], ['on', 'on'], ['off', 'off']])}
    ${FIELDS.map(([name, label, hint]) => html`<label>${label}<input inputmode="decimal" name=${name} value=${settings[name]} placeholder="default" aria-describedby=${`hint-${name}`}
      onInput=${input(name)} /><small id=${`hint-${name}`}>${hint}</small></label>`)}
    <label class="wide">System prompt of new chats<textarea name="system" rows="3" value=${settings.system} onInput=${setSystem} /></label>
    <label class="wide">System prompt of this chat<textarea name="chat-system" rows="3" value=${state.current.system} onInput=${setChatSystem} /></label>
    <label class="wide">Extra request fields (JSON)<textarea name="extra" rows="2" value=${settings.extra} placeholder=${'{"min_p": 0.05}'} aria-invalid=${!isJson(settings.extra)} onInput=${input('extra')} /></label>
    ${!isJson(settings.extra) && html`<p class="error wide" role="alert">The extra fields are not a JSON object.</p>`}
    <dl class="keys wide">${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <div class="row wide"><button type="button" class="primary" id="close-settings" onClick=${close}>Done</button>
      <button type="button" onClick=${() => setSettings({...DEFAULTS, key: settings.key})}>Reset</button>
      <button type="button" id="change-key" onClick=${event => { close(event); setTimeout(() => set({dialog: 'key'})); }}>API key…</button></div>
  </${Dialog}>`;
}

export function KeyDialog() {
  const field = useRef();
  const [problem, setProblem] = useState('');
  const [isBusy, setBusy] = useState(false);
  const submit = async event => {
    event.preventDefault();
    const dialog = event.target.closest('dialog'), key = field.current.value.trim();
    setBusy(true);
    try {
      await getJson('v1/models', key);
      setSettings({key});
      dialog.close();
      loadServer();
      retryUnanswered();
    } catch (error) {
      setProblem(error.status === 401 ? (key ? 'Wrong key.' : 'This server needs a key.') : error.message);
      field.current.select();
    }
    setBusy(false);
  };
  return html`<${Dialog} label="API key">
    <form class="wide" id="key-form" onSubmit=${submit}>
      <h2>API key</h2>
      <p class="dim">The server was started with <code>--api-key</code>. The key stays in this browser.</p>
      <label>Key<input type="password" name="key" autocomplete="off" ref=${field} defaultValue=${state.settings.key} aria-invalid=${!!problem} aria-describedby="key-problem" /></label>
      <p class="error" id="key-problem" role="alert">${problem}</p>
      <div class="row"><button type="submit" class="primary" disabled=${isBusy}>Use this key</button><button type="button" onClick=${close}>Cancel</button></div>
    </form></${Dialog}>`;
}
