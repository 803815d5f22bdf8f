// Conversations in IndexedDB, settings in localStorage. Nothing leaves the browser. Tabs tell each other what they changed.
import {merge} from './merge.js';

const DATABASE = 'mlxcel', TABLE = 'conversations', SETTINGS = 'mlxcel-settings';

export const DEFAULTS = {temperature: '', top_p: '', top_k: '', max_tokens: '', seed: '', system: '', think: 'default', theme: 'system', key: '', extra: '',
  titles: 'model', model: '', list: 'shown'};

let opened;
function database() {
  opened ??= new Promise((done, fail) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, {keyPath: 'id'});
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error);
  });
  return opened;
}

// Runs |work| on the table and resolves with its result when the transaction is on disk.
async function transact(mode, work) {
  const transaction = (await database()).transaction(TABLE, mode);
  return new Promise((done, fail) => {
    let result;
    transaction.oncomplete = () => done(result);
    transaction.onabort = transaction.onerror = () => fail(transaction.error ?? new Error('the transaction ended early'));
    work(transaction.objectStore(TABLE), value => { result = value; });
  });
}

const read = (request, give) => { request.onsuccess = () => give(request.result); };

export const loadAll = () => transact('readonly', (table, give) => read(table.getAll(), give));
export const load = id => transact('readonly', (table, give) => read(table.get(id), give));

// Writes |conversation|. What another tab wrote since then joins it, in the same transaction.
export async function save(conversation) {
  await transact('readwrite', table => read(table.get(conversation.id), stored => {
    if (stored) merge(conversation, stored);
    table.put(conversation);
  }));
  tell({type: 'saved', id: conversation.id});
}

export async function remove(id) {
  await transact('readwrite', table => table.delete(id));
  tell({type: 'removed', id});
}

const channel = 'BroadcastChannel' in window ? new BroadcastChannel(DATABASE) : null;

// Messages to other tabs: {type: 'saved' | 'removed', id}; {type: 'live', id, node}: this tab writes that answer now; node null: no more.
export const tell = message => channel?.postMessage(message);
export function listen(on) {
  if (channel) channel.onmessage = event => on(event.data);
}

// What is stored may be of another version, or damaged: a value that is no text is the default.
export function loadSettings() {
  try {
    const stored = JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
    return Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, typeof stored[name] === 'string' ? stored[name] : value]));
  } catch {
    return {...DEFAULTS};
  }
}
// Changes some settings and keeps those that another tab changed.
export function changeSettings(settings, changes) {
  const next = {...settings, ...loadSettings(), ...changes};
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(next));
  } catch {  // storage is full or disabled: the settings last until the page closes
    return {...settings, ...changes};
  }
  return next;
}
export function onSettings(on) {
  addEventListener('storage', event => { if (event.key === SETTINGS) on(loadSettings()); });
}
