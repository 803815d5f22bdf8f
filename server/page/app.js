// The chat page: its layout, the list of messages, and keys. docs/internals/chat-page.md describes the files.
import {html, render, useLayoutEffect, useRef, useState} from './htm.js';
import {leave, loadServer, modelOf, runOf, stop, tryServer} from './answers.js';
import {newChat, start} from './chats.js';
import {copyCode, saveCode} from './clipboard.js';
import {Composer} from './composer.js';
import {KeyDialog, Settings} from './dialogs.js';
import {Button} from './icons.js';
import {Message} from './message.js';
import {Sidebar} from './sidebar.js';
import {applyTheme, drawWith, focusInput, isPhone, keep, refresh, set, setSettings, showList, state} from './state.js';
import {path, titleOf} from './tree.js';

const MOST = 40;       // messages that are drawn before "Show earlier messages"
const NEAR_END = 60;   // pixels
const STARTERS = ['Explain how a compiler turns code into a program', 'Write a Python function that finds duplicate files, and explain it',
  'Make a table that compares TCP and UDP', 'Help me word a short, friendly reminder to a colleague'];

function Empty() {
  const name = modelOf(state.current);  // none until the server has listed its models: style.css keeps the line's height
  const use = text => {
    state.drafts.set(state.current.id, {text, files: []});
    set({draftOf: state.draftOf + 1});
    focusInput();
  };
  return html`<div class="empty"><h2>What shall we write?</h2>
    <p class="dim served" title=${name}>${name && `${name} runs on this server.`}</p><p class="dim">Chats stay in this browser.</p>
    <ul class="starters" aria-label="Examples">${STARTERS.map(text => html`<li><button type="button" onClick=${() => use(text)}>${text}</button></li>`)}</ul></div>`;
}

function Chat() {
  const main = useRef(), isAtEnd = useRef(true), before = useRef(null);
  const [most, setMost] = useState(MOST);
  const [isFar, setFar] = useState(false);
  const shown = path(state.current), hidden = Math.max(0, shown.length - most);
  const toEnd = () => { isAtEnd.current = true; main.current.scrollTop = main.current.scrollHeight; };
  useLayoutEffect(() => { isAtEnd.current = true; }, [state.atEnd]);
  useLayoutEffect(() => {
    const element = main.current;
    if (before.current !== null) element.scrollTop = element.scrollHeight - before.current;  // earlier messages came in above
    else if (isAtEnd.current) element.scrollTop = element.scrollHeight;
    before.current = null;
  });
  const onScroll = () => {
    const {scrollHeight, scrollTop, clientHeight} = main.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
    if (isAtEnd.current === isFar) setFar(!isAtEnd.current);
  };
  const earlier = () => {
    before.current = main.current.scrollHeight - main.current.scrollTop;
    isAtEnd.current = false;
    setMost(most + MOST);
  };
  const onClick = event => {
    const copy = event.target.closest?.('button.copy'), save = event.target.closest?.('button.save');
    if (copy) copyCode(copy);
    if (save) saveCode(save);
  };
  return html`<main ref=${main} tabindex="-1" aria-label="Messages" onScroll=${onScroll} onClick=${onClick}>
      ${!shown.length && state.isLoaded && html`<${Empty} />`}
      ${hidden > 0 && html`<button type="button" id="earlier" onClick=${earlier}>Show ${Math.min(MOST, hidden)} earlier messages of ${hidden}</button>`}
      ${shown.slice(hidden).map((node, i) => html`<${Message} key=${node.id} node=${node} last=${i + hidden === shown.length - 1} />`)}
    </main>
    ${isFar && html`<div class="jump"><${Button} icon="down" id="to-end" label="To the end" onClick=${toEnd} /></div>`}`;
}

function ContextUse() {
  const stats = path(state.current).filter(node => node.stats).at(-1)?.stats;
  if (!stats || !state.context) return null;
  const used = stats.prompt + stats.output;
  return html`<span class="context" title="tokens of this chat in the model's context">
    <meter min="0" max=${state.context} value=${used} high=${state.context * 0.9} aria-label="context use" /> ${used} / ${state.context}</span>`;
}

function Model() {
  if (state.models.length < 2) return html`<span class="model" title=${state.models[0]}>${state.models[0] ?? ''}</span>`;
  const change = event => {
    state.current.model = event.target.value;
    setSettings({model: event.target.value});
    if (state.conversations.includes(state.current)) keep(state.current, true);
  };
  return html`<select id="model" aria-label="Model" value=${modelOf(state.current)} onChange=${change}>${state.models.map(model => html`<option value=${model}>${model}</option>`)}</select>`;
}

function Notices() {
  const {notice} = state;
  return html`${state.isDown && html`<div class="notice down" role="alert"><span>The server does not answer. The page asks again by itself.</span>
      <button type="button" id="try-server" onClick=${tryServer}>Try now</button></div>`}
    ${notice && html`<div class="notice" role="status"><span>${notice.text}</span>
      ${notice.action && html`<button type="button" onClick=${() => { set({notice: null}); notice.action.run(); }}>${notice.action.label}</button>`}
      <${Button} quiet icon="close" label="Close" onClick=${() => set({notice: null})} /></div>`}`;
}

function App() {
  const title = titleOf(state.current);
  document.title = state.conversations.includes(state.current) ? `${title} · mlxcel` : 'mlxcel';
  return html`<${Sidebar} />
    ${state.sidebar && html`<div class="cover" onClick=${() => set({sidebar: false})} />`}
    <div class="column">
      <header>
        <${Button} quiet icon="menu" id="menu" label="Chats" aria-expanded=${isPhone() && state.sidebar} onClick=${() => showList(!isPhone() || !state.sidebar)} />
        <h1>${title}</h1>
        <${ContextUse} />
        <${Model} />
        <${Button} icon="gear" id="settings" label="Settings" onClick=${() => set({dialog: 'settings'})} />
      </header>
      <${Notices} />
      <${Chat} key=${state.current.id} />
      <${Composer} />
    </div>
    <div id="announce" class="unseen" role="status" aria-live="polite">${state.announcement}</div>
    ${state.dialog === 'settings' && html`<${Settings} />`}
    ${state.dialog === 'key' && html`<${KeyDialog} />`}`;
}

addEventListener('keydown', event => {
  const command = event.ctrlKey || event.metaKey;
  if (event.key === 'Escape' && !state.dialog) {
    if (state.editing) set({editing: null});
    else if (state.sidebar) set({sidebar: false});
    else if (runOf(state.current)) stop(state.current);
  } else if (command && event.shiftKey && event.key.toLowerCase() === 'o') {
    event.preventDefault();
    newChat();
  } else if (command && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    showList(true);
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById('search').focus()));
  }
});
addEventListener('pagehide', leave);

applyTheme();
drawWith(() => render(html`<${App} />`, document.getElementById('app')));
refresh();
start();
loadServer();
focusInput();
