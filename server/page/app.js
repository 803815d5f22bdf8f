// The chat page: state, streaming and the components. Data structures are in tree.js, storage in store.js.
import {html, render, useEffect, useLayoutEffect, useRef, useState} from './htm.js';
import {ApiError, getJson, streamChat} from './api.js';
import {copyText, renderMarkdown} from './markdown.js';
import {addNode, checkConversation, choose, contains, createConversation, leaf, messages, path, place, titleOf} from './tree.js';
import {DEFAULTS, loadAll, loadSettings, remove, save, saveSettings} from './store.js';

const SAVE_MS = 1000;  // while an answer streams

const state = {
  conversations: [], current: null, settings: loadSettings(), models: [], context: 0,
  running: null,  // {conversation, node, abort, started, first, tokens}
  search: '', sidebar: false, dialog: null, notice: '', editing: null,
};

let scheduled = false;
function refresh() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render(html`<${App} />`, document.getElementById('app'));
  });
}
function set(changes) {
  Object.assign(state, changes);
  refresh();
}
const fail = error => set({notice: error.message ?? String(error)});
const store = conversation => save(conversation).catch(error => fail(new Error(`the browser could not store the chat: ${error.message}`)));

// ---- actions ----------------------------------------------------------------------------------------------------

function applyTheme() {
  document.documentElement.dataset.theme = state.settings.theme;
}

function setSettings(changes) {
  state.settings = {...state.settings, ...changes};
  saveSettings(state.settings);
  applyTheme();
  refresh();
}

async function loadServer() {
  try {
    const models = (await getJson('v1/models', state.settings.key)).data.map(model => model.id);
    const props = await getJson('props', state.settings.key);
    set({models, context: props.default_generation_settings?.n_ctx ?? 0, notice: ''});
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) set({dialog: 'settings', notice: 'This server needs an API key: enter it in the settings.'});
    else fail(error);
  }
}

function newChat() {
  set({current: createConversation(state.settings.system), sidebar: false, editing: null, notice: ''});
  focusInput();
}

function open(conversation) {
  set({current: conversation, sidebar: false, editing: null, notice: ''});
}

function focusInput() {
  requestAnimationFrame(() => document.getElementById('input')?.focus());
}

function number(settings, name, request) {
  const value = parseFloat(settings[name]);
  if (Number.isFinite(value)) request[name] = value;
}

function makeRequest(conversation, node) {
  const {settings} = state;
  const request = {messages: messages(conversation, conversation.nodes[node.parent])};
  if (conversation.model) request.model = conversation.model;
  for (const name of ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed']) number(settings, name, request);
  if (settings.think !== 'default') request.chat_template_kwargs = {enable_thinking: settings.think === 'on'};
  if (settings.extra.trim()) Object.assign(request, JSON.parse(settings.extra));
  return request;
}

function receive(run, delta) {
  const {node} = run;
  if (delta.text || delta.reasoning) {
    run.first ??= performance.now();
    run.tokens += 1;
    node.content += delta.text;
    node.reasoning += delta.reasoning;
  }
  if (delta.finish) node.finish = delta.finish;
  if (delta.usage) {
    node.stats = {prompt: delta.usage.prompt_tokens, cached: delta.usage.prompt_tokens_details?.cached_tokens ?? 0, output: delta.usage.completion_tokens,
                  speed: run.speed};
  }
  if (delta.timings) {
    run.speed = delta.timings.predicted_per_second;
    if (node.stats) node.stats.speed = run.speed;
  }
  if (performance.now() - run.saved > SAVE_MS) {
    run.saved = performance.now();
    store(run.conversation);
  }
  refresh();
}

// Generates an answer as a new child of |parent|.
async function answer(conversation, parent) {
  if (state.running) return;
  const node = addNode(conversation, parent.id, 'assistant');
  const run = {conversation, node, abort: new AbortController(), first: null, tokens: 0, saved: performance.now()};
  if (!state.conversations.includes(conversation)) state.conversations.push(conversation);
  set({running: run, notice: '', editing: null});
  store(conversation);  // a reload before the first token must not lose the user's message
  try {
    const request = makeRequest(conversation, node);
    node.model = request.model ?? state.models[0] ?? '';
    await streamChat(request, state.settings.key, run.abort.signal, delta => receive(run, delta));
  } catch (error) {
    if (error.name === 'AbortError') node.finish = 'stopped';
    else node.error = error instanceof SyntaxError ? `settings, extra fields: ${error.message}` : error.message;
  }
  conversation.updated = Date.now();
  set({running: null});
  await store(conversation);
  focusInput();
}

function send(text) {
  if (state.running || !text.trim()) return false;
  const conversation = state.current;
  answer(conversation, addNode(conversation, leaf(conversation).id, 'user', text));
  return true;
}

function stop() {
  state.running?.abort.abort();
}

function regenerate(node) {
  answer(state.current, state.current.nodes[node.parent]);
}

function submitEdit(node, text) {
  if (state.running) return;
  if (node.role === 'user') {
    answer(state.current, addNode(state.current, node.parent, 'user', text));
    return;
  }
  const edited = addNode(state.current, node.parent, 'assistant', text);
  edited.reasoning = node.reasoning;
  edited.model = node.model;
  store(state.current);
  set({editing: null});
}

async function deleteChat(conversation) {
  if (!confirm(`Delete "${titleOf(conversation)}"?`)) return;
  if (state.running?.conversation === conversation) stop();
  await remove(conversation.id).catch(fail);
  state.conversations = state.conversations.filter(c => c !== conversation);
  if (state.current === conversation) newChat();
  refresh();
}

function download(name, value) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], {type: 'application/json'}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function exportChats(conversations) {
  download(`mlxcel-chats-${new Date().toISOString().slice(0, 10)}.json`, {format: 'mlxcel-chats', version: 1, conversations});
}

async function importChats(file) {
  try {
    const value = JSON.parse(await file.text());
    if (value?.format !== 'mlxcel-chats' || !Array.isArray(value.conversations)) throw new Error("field 'format' is not \"mlxcel-chats\": export a file with this page first");
    const added = value.conversations.map((c, i) => checkConversation(c, `conversations[${i}]`));
    for (const conversation of added) await save(conversation);
    state.conversations.push(...added);
    set({notice: `${added.length} chats imported`});
  } catch (error) {
    fail(new Error(`cannot import ${file.name}: ${error.message}`));
  }
}

// ---- components -------------------------------------------------------------------------------------------------

function Body({text, live}) {
  const element = useRef();
  useLayoutEffect(() => renderMarkdown(element.current, text), [text]);
  return html`<div class=${'body' + (live ? ' live' : '')} ref=${element} />`;
}

function Reasoning({node, live}) {
  const [open, setOpen] = useState(false);
  if (!node.reasoning) return null;
  return html`<details class="reasoning" open=${open} onToggle=${event => setOpen(event.target.open)}>
    <summary>${live && !node.content ? 'Thinking…' : 'Thoughts'}</summary>
    ${open && html`<${Body} text=${node.reasoning} />`}
  </details>`;
}

function Branches({node}) {
  const {index, count} = place(state.current, node);
  if (count < 2) return null;
  const go = offset => { choose(state.current, node, offset); store(state.current); refresh(); };
  return html`<span class="branches">
    <button type="button" title="Previous version" disabled=${index === 0} onClick=${() => go(-1)}>‹</button>
    <span>${index + 1} / ${count}</span>
    <button type="button" title="Next version" disabled=${index === count - 1} onClick=${() => go(1)}>›</button>
  </span>`;
}

function Editor({node}) {
  const area = useRef();
  useEffect(() => { area.current.focus(); grow(area.current); }, []);
  const submit = () => submitEdit(node, area.current.value);
  const onKey = event => {
    if (event.key === 'Escape') set({editing: null});
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) submit();
  };
  return html`<div class="editor">
    <textarea ref=${area} aria-label="Edit message" defaultValue=${node.content} onInput=${event => grow(event.target)} onKeyDown=${onKey} />
    <div class="row"><button type="button" class="primary" onClick=${submit}>${node.role === 'user' ? 'Send' : 'Save'}</button>
    <button type="button" onClick=${() => set({editing: null})}>Cancel</button></div>
  </div>`;
}

function Stats({node}) {
  const {stats} = node;
  if (!stats) return null;
  const speed = stats.speed ? ` · ${stats.speed.toFixed(1)} tok/s` : '';
  return html`<span class="stats" title=${`prompt ${stats.prompt} tokens, ${stats.cached} of them cached`}>${stats.output} tokens${speed}</span>`;
}

function Message({node, last}) {
  const live = state.running?.node === node;
  const isEditing = state.editing === node.id;
  const idle = !state.running;
  return html`<article class=${`message ${node.role}`} data-role=${node.role}>
    <${Reasoning} node=${node} live=${live} />
    ${isEditing ? html`<${Editor} node=${node} />`
      : node.role === 'user' ? html`<div class="body plain">${node.content}</div>`
      : html`<${Body} text=${node.content} live=${live} />`}
    ${live && !node.content && !node.reasoning && html`<div class="waiting" role="status">reading the prompt…</div>`}
    ${node.finish === 'length' && html`<p class="note">The answer reached its token limit.</p>`}
    ${node.finish === 'stopped' && html`<p class="note">Stopped.</p>`}
    ${node.error && html`<p class="error" role="alert">${node.error}</p>`}
    ${!live && !isEditing && html`<footer>
      <${Branches} node=${node} />
      <button type="button" onClick=${() => copyText(node.content)}>Copy</button>
      ${idle && html`<button type="button" onClick=${() => set({editing: node.id})}>Edit</button>`}
      ${idle && last && node.role === 'assistant' && html`<button type="button" onClick=${() => regenerate(node)}>Regenerate</button>`}
      ${idle && last && node.role === 'user' && html`<button type="button" onClick=${() => answer(state.current, node)}>Answer</button>`}
      <${Stats} node=${node} />
    </footer>`}
  </article>`;
}

function grow(area) {
  area.style.height = 'auto';
  area.style.height = Math.min(area.scrollHeight + 2, innerHeight * 0.4) + 'px';
}

function Composer() {
  const area = useRef();
  const running = state.running && state.running.conversation === state.current;
  const submit = () => {
    if (send(area.current.value)) {
      area.current.value = '';
      grow(area.current);
    }
  };
  const onKey = event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === 'ArrowUp' && !area.current.value) {
      const mine = path(state.current).filter(node => node.role === 'user').at(-1);
      if (mine && !state.running) set({editing: mine.id});
    }
  };
  return html`<form class="composer" onSubmit=${event => { event.preventDefault(); submit(); }}>
    <textarea id="input" ref=${area} rows="1" placeholder="Message" aria-label="Message" onInput=${event => grow(event.target)} onKeyDown=${onKey} />
    ${running ? html`<button type="button" class="primary" id="stop" onClick=${stop}>Stop</button>`
      : html`<button type="submit" class="primary" id="send" disabled=${!!state.running}>Send</button>`}
  </form>`;
}

function ContextUse() {
  const stats = path(state.current).filter(node => node.stats).at(-1)?.stats;
  if (!stats || !state.context) return null;
  const used = stats.prompt + stats.output;
  return html`<span class="context" title="tokens of this chat in the model's context">
    <meter min="0" max=${state.context} value=${used} high=${state.context * 0.9} aria-label="context use" /> ${used} / ${state.context}</span>`;
}

function Chat() {
  const list = path(state.current);
  const scroller = useRef();
  const stick = useRef(true);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (stick.current) element.scrollTop = element.scrollHeight;
  });
  const onScroll = event => { const e = event.target; stick.current = e.scrollHeight - e.scrollTop - e.clientHeight < 40; };
  const onClick = event => {
    if (!event.target.matches('button.copy')) return;
    copyText(event.target.closest('pre').querySelector('code').textContent);
    event.target.textContent = 'Copied';
    setTimeout(() => { event.target.textContent = 'Copy'; }, 1500);
  };
  return html`<main ref=${scroller} onScroll=${onScroll} onClick=${onClick} aria-live="off">
    ${!list.length && html`<div class="empty"><h1>${state.models[0] ?? 'mlxcel'}</h1><p>Chats stay in this browser.</p></div>`}
    ${list.map((node, i) => html`<${Message} key=${node.id} node=${node} last=${i === list.length - 1} />`)}
  </main>`;
}

function Sidebar() {
  const file = useRef();
  const shown = state.conversations.filter(c => !state.search.trim() || contains(c, state.search.trim())).sort((a, b) => b.updated - a.updated);
  return html`<nav class=${state.sidebar ? 'open' : ''} aria-label="Chats">
    <button type="button" class="primary" id="new" onClick=${newChat}>New chat</button>
    <input type="search" id="search" placeholder="Search chats" aria-label="Search chats" value=${state.search} onInput=${event => set({search: event.target.value})} />
    <ul>${shown.map(c => html`<li key=${c.id} class=${c === state.current ? 'current' : ''}>
      <button type="button" class="title" onClick=${() => open(c)}>${titleOf(c)}</button>
      <button type="button" class="delete" title="Delete chat" aria-label="Delete chat" onClick=${() => deleteChat(c)}>×</button>
    </li>`)}</ul>
    <div class="row">
      <button type="button" id="export" onClick=${() => exportChats(state.conversations)}>Export</button>
      <button type="button" id="import" onClick=${() => file.current.click()}>Import</button>
      <input type="file" ref=${file} accept="application/json,.json" hidden aria-label="Import file"
        onChange=${event => { if (event.target.files[0]) importChats(event.target.files[0]); event.target.value = ''; }} />
    </div>
  </nav>`;
}

const FIELDS = [
  ['temperature', 'Temperature', '0 to 2; 0: always the most likely token'], ['top_p', 'Top-p', '0 to 1'], ['top_k', 'Top-k', 'tokens to keep; 0: all'],
  ['max_tokens', 'Answer limit', 'tokens'], ['seed', 'Seed', 'the same seed gives the same answer'],
];

function Settings() {
  const {settings} = state;
  const close = () => { set({dialog: null}); loadServer(); focusInput(); };
  const input = name => event => setSettings({[name]: event.target.value});
  const setSystem = event => {
    setSettings({system: event.target.value});
    if (!path(state.current).length) state.current.system = event.target.value;
  };
  const setChatSystem = event => { state.current.system = event.target.value; if (path(state.current).length) store(state.current); refresh(); };
  return html`<div class="shade" onClick=${event => event.target === event.currentTarget && close()}>
    <section class="dialog" role="dialog" aria-modal="true" aria-label="Settings">
      <h2>Settings</h2>
      ${FIELDS.map(([name, label, hint]) => html`<label>${label}<input inputmode="decimal" name=${name} value=${settings[name]} placeholder="default" title=${hint} onInput=${input(name)} /></label>`)}
      <label>Reasoning<select value=${settings.think} onChange=${input('think')}>
        <option value="default">default</option><option value="on">on</option><option value="off">off</option></select></label>
      <label>Theme<select name="theme" value=${settings.theme} onChange=${input('theme')}>
        <option value="system">system</option><option value="light">light</option><option value="dark">dark</option></select></label>
      <label class="wide">System prompt of new chats<textarea name="system" rows="3" value=${settings.system} onInput=${setSystem} /></label>
      <label class="wide">System prompt of this chat<textarea name="chat-system" rows="3" value=${state.current.system} onInput=${setChatSystem} /></label>
      <label class="wide">Extra request fields (JSON)<textarea rows="2" value=${settings.extra} placeholder=${'{"min_p": 0.05}'} onInput=${input('extra')} /></label>
      <label class="wide">API key<input type="password" name="key" autocomplete="off" value=${settings.key} onInput=${input('key')} /></label>
      <div class="row"><button type="button" class="primary" id="close-settings" onClick=${close}>Done</button>
        <button type="button" onClick=${() => setSettings({...DEFAULTS, key: settings.key})}>Reset</button></div>
      <p class="note">Enter sends, Shift+Enter starts a new line, ↑ edits the last message, Esc stops, Ctrl+Shift+O starts a new chat, Ctrl+K searches.</p>
    </section>
  </div>`;
}

function App() {
  return html`<${Sidebar} />
    ${state.sidebar && html`<div class="cover" onClick=${() => set({sidebar: false})} />`}
    <div class="column">
      <header>
        <button type="button" id="menu" aria-label="Chats" onClick=${() => set({sidebar: !state.sidebar})}>☰</button>
        ${state.models.length > 1 ? html`<select aria-label="Model" value=${state.current.model || state.models[0]}
            onChange=${event => { state.current.model = event.target.value; refresh(); }}>
            ${state.models.map(model => html`<option value=${model}>${model}</option>`)}</select>`
          : html`<span class="model">${state.models[0] ?? ''}</span>`}
        <${ContextUse} />
        <button type="button" id="settings" onClick=${() => set({dialog: 'settings'})}>Settings</button>
      </header>
      ${state.notice && html`<div class="notice" role="status">${state.notice}<button type="button" aria-label="Close" onClick=${() => set({notice: ''})}>×</button></div>`}
      <${Chat} key=${state.current.id} />
      <${Composer} />
    </div>
    ${state.dialog === 'settings' && html`<${Settings} />`}`;
}

// ---- start ------------------------------------------------------------------------------------------------------

addEventListener('keydown', event => {
  const command = event.ctrlKey || event.metaKey;
  if (event.key === 'Escape') {
    if (state.dialog) set({dialog: null});
    else if (state.running) stop();
  } else if (command && event.shiftKey && event.key.toLowerCase() === 'o') {
    event.preventDefault();
    newChat();
  } else if (command && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    set({sidebar: true});
    requestAnimationFrame(() => document.getElementById('search').focus());
  }
});
addEventListener('pagehide', () => { if (state.running) store(state.running.conversation); });

applyTheme();
state.current = createConversation(state.settings.system);
refresh();
loadServer();
loadAll().then(found => {
  state.conversations.push(...found);
  const latest = found.sort((a, b) => b.updated - a.updated)[0];
  if (latest && !path(state.current).length) open(latest);
  refresh();
}).catch(error => fail(new Error(`the browser could not read stored chats: ${error.message}`)));
focusInput();
