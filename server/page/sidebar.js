// The list of chats.
import {html, useEffect, useRef, useState} from './htm.js';
import {isBusy} from './answers.js';
import {addressOf, deleteChat, exportChats, importChats, newChat, open, rename} from './chats.js';
import {Button, Icon} from './icons.js';
import {set, showList, state} from './state.js';
import {contains, titleOf} from './tree.js';

const MOST = 100;  // chats that are drawn before "Show more"
const DAY = 86400000;

function groupOf(time, now) {
  const today = new Date(now).setHours(0, 0, 0, 0);
  return time >= today ? 'Today' : time >= today - 6 * DAY ? 'Last 7 days' : 'Earlier';
}

function Rename({conversation}) {
  const input = useRef();
  useEffect(() => input.current.select(), []);
  const onKey = event => {
    if (event.key === 'Enter') rename(conversation, input.current.value);
    if (event.key === 'Escape') { event.stopPropagation(); set({renaming: null}); }
  };
  return html`<input class="rename" ref=${input} aria-label="Title of the chat" defaultValue=${titleOf(conversation)} onKeyDown=${onKey}
    onBlur=${() => state.renaming === conversation.id && rename(conversation, input.current.value)} />`;
}

function Entry({conversation}) {
  const title = titleOf(conversation), isOpen = conversation === state.current;
  const onClick = event => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;  // a new tab or window
    event.preventDefault();
    open(conversation);
  };
  const onKey = event => {
    if (event.key === 'F2') set({renaming: conversation.id});
    if (event.key === 'Delete') deleteChat(conversation);
  };
  const mark = isBusy(conversation) ? ['busy', 'answering'] : state.unread.has(conversation.id) ? ['unread', 'new answer'] : null;
  return html`<li class=${isOpen ? 'current' : ''}>
    ${state.renaming === conversation.id ? html`<${Rename} conversation=${conversation} />` : html`
      <a class="title" href=${addressOf(conversation)} aria-current=${isOpen ? 'page' : undefined} onClick=${onClick} onKeyDown=${onKey} title=${title}>${title}</a>
      ${mark && html`<span class=${`mark ${mark[0]}`} role="img" aria-label=${mark[1]} />`}
      <${Button} quiet icon="edit" className="hover" label=${`Rename ${title}`} onClick=${() => set({renaming: conversation.id})} />
      <${Button} quiet icon="trash" className="hover delete" label=${`Delete ${title}`} onClick=${() => deleteChat(conversation)} />`}
  </li>`;
}

export function Sidebar() {
  const file = useRef();
  const [most, setMost] = useState(MOST);
  const found = state.conversations.filter(c => !state.search || contains(c, state.search)).sort((a, b) => b.updated - a.updated);
  const now = Date.now(), groups = new Map();
  for (const conversation of found.slice(0, most)) {
    const name = groupOf(conversation.updated, now);
    groups.set(name, [...groups.get(name) ?? [], conversation]);
  }
  return html`<nav class=${state.sidebar ? 'open' : ''} aria-label="Chats">
    <div class="brand"><span>mlxcel</span><${Button} quiet icon="panel" id="close-menu" label="Close the list of chats" onClick=${() => showList(false)} /></div>
    <${Button} icon="plus" id="new" label="New chat" className="wide" onClick=${newChat} />
    <label class="search"><${Icon} name="search" /><input type="search" id="search" placeholder="Search chats" aria-label="Search chats" value=${state.search}
      onInput=${event => set({search: event.target.value})} /></label>
    <div class="chats">
      ${[...groups].map(([name, list]) => html`<section key=${name}><h2>${name}</h2><ul>${list.map(c => html`<${Entry} key=${c.id} conversation=${c} />`)}</ul></section>`)}
      ${state.search && !found.length && html`<p class="dim">No chat has these words.</p>`}
      ${found.length > most && html`<button type="button" id="more-chats" onClick=${() => setMost(most + MOST)}>Show ${Math.min(MOST, found.length - most)} more of ${found.length}</button>`}
    </div>
    <div class="row">
      <${Button} icon="out" id="export" label="Export" onClick=${() => exportChats(state.conversations)} />
      <${Button} icon="in" id="import" label="Import" onClick=${() => file.current.click()} />
      <input type="file" id="import-file" ref=${file} accept="application/json,.json" hidden aria-label="Import file"
        onChange=${event => { if (event.target.files[0]) importChats(event.target.files[0]); event.target.value = ''; }} />
    </div>
  </nav>`;
}
