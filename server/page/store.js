// Conversations in IndexedDB, settings in localStorage. Nothing leaves the browser.

const DATABASE = 'mlxcel', TABLE = 'conversations', SETTINGS = 'mlxcel-settings';

export const DEFAULTS = {temperature: '', top_p: '', top_k: '', max_tokens: '', seed: '', system: '', think: 'default', theme: 'system', key: '', extra: ''};

const wait = request => new Promise((done, fail) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => fail(request.error);
});

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
const table = async mode => (await database()).transaction(TABLE, mode).objectStore(TABLE);

export const loadAll = async () => wait((await table('readonly')).getAll());
export const save = async conversation => wait((await table('readwrite')).put(conversation));
export const remove = async id => wait((await table('readwrite')).delete(id));

export function loadSettings() {
  try {
    return {...DEFAULTS, ...JSON.parse(localStorage.getItem(SETTINGS) ?? '{}')};
  } catch {
    return {...DEFAULTS};
  }
}
export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch { /* storage is full or disabled: the settings last until the page closes */ }
}
