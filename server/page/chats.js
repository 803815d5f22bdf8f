// The list of chats: opening by URL, renaming, deleting, files, and what other tabs do.
import {heardLive, stop} from './answers.js';
import {download} from './clipboard.js';
import {merge} from './merge.js';
import {load, loadAll, listen, remove, save} from './store.js';
import {announce, fail, focusInput, keep, notify, refresh, set, state} from './state.js';
import {checkConversation, createConversation, titleOf} from './tree.js';

export const addressOf = conversation => `#/chat/${conversation.id}`;
const find = id => state.conversations.find(c => c.id === id);

function show(conversation) {
  state.unread.delete(conversation.id);
  set({current: conversation, sidebar: false, editing: null, renaming: null, notice: null});
}

export function newChat() {
  show(createConversation(state.settings.system));
  if (location.hash) history.pushState(null, '', location.pathname + location.search);
  focusInput();
}

export function open(conversation) {
  show(conversation);
  if (location.hash !== addressOf(conversation)) history.pushState(null, '', addressOf(conversation));
}

// The chat gets its address with its first message; its place in the history is that of the new chat.
export function address(conversation) {
  if (location.hash !== addressOf(conversation)) history.replaceState(null, '', addressOf(conversation));
}

export function openAddress() {
  const id = /^#\/chat\/(\w+)$/.exec(location.hash)?.[1];
  if (!id) {
    if (state.conversations.includes(state.current)) show(createConversation(state.settings.system));
    return;
  }
  const conversation = find(id);
  if (conversation) show(conversation);
  else if (state.isLoaded) {
    history.replaceState(null, '', location.pathname + location.search);
    notify('This browser does not have that chat. Chats are stored in the browser that they were written in.');
  }
}

export function rename(conversation, title) {
  conversation.title = title.trim();
  set({renaming: null});
  if (state.conversations.includes(conversation)) keep(conversation, true);
}

export async function deleteChat(conversation) {
  stop(conversation);
  const next = state.conversations.indexOf(conversation);
  await remove(conversation.id).catch(fail);
  state.conversations = state.conversations.filter(c => c !== conversation);
  if (state.current === conversation) newChat();
  const undo = () => {
    state.conversations.splice(next, 0, conversation);
    keep(conversation);
    open(conversation);
  };
  notify(`“${titleOf(conversation)}” was deleted.`, {label: 'Undo', run: undo});
}

export function exportChats(conversations) {
  const text = JSON.stringify({format: 'mlxcel-chats', version: 1, conversations}, null, 1);
  download(`mlxcel-chats-${new Date().toISOString().slice(0, 10)}.json`, text, 'application/json');
}

export async function importChats(file) {
  try {
    const value = JSON.parse(await file.text());
    if (value?.format !== 'mlxcel-chats' || !Array.isArray(value.conversations)) throw new Error("field 'format' is not \"mlxcel-chats\": export a file with this page first");
    const added = value.conversations.map((c, i) => checkConversation(c, `conversations[${i}]`));
    for (const conversation of added) await save(conversation);
    state.conversations.push(...added);
    notify(`${added.length} chats imported`);
  } catch (error) {
    fail(new Error(`cannot import ${file.name}: ${error.message}`));
  }
}

// ---- other tabs -------------------------------------------------------------------------------------------------

async function heardSaved(id) {
  const stored = await load(id);
  if (!stored) return;
  const mine = find(id);
  if (mine) merge(mine, stored);
  else state.conversations.push(stored);
  refresh();
}

function heardRemoved(id) {
  const mine = find(id);
  if (!mine || state.runs.has(id)) return;  // a chat that answers here is stored again
  state.conversations = state.conversations.filter(c => c !== mine);
  if (state.current === mine) {
    newChat();
    notify('The chat was deleted in another tab.', {label: 'Keep it', run: () => { state.conversations.push(mine); keep(mine); open(mine); }});
  }
  refresh();
}

export async function start() {
  listen(message => {
    if (message.type === 'saved') heardSaved(message.id).catch(fail);
    else if (message.type === 'removed') heardRemoved(message.id);
    else if (message.type === 'live') heardLive(message);
  });
  addEventListener('popstate', openAddress);
  try {
    const found = await loadAll();
    state.conversations.push(...found.filter(c => !find(c.id)));
  } catch (error) {
    fail(new Error(`the browser could not read stored chats: ${error.message}`));
  }
  set({isLoaded: true});
  openAddress();
  if (!location.hash) announce('New chat');
}
