// What the page shows, and the settings. set() and refresh() draw it again with the next frame.
import {changeSettings, loadSettings, onSettings, save} from './store.js';
import {createConversation} from './tree.js';

const settings = loadSettings();
export const state = {
  settings, conversations: [], current: createConversation(settings.system), isLoaded: false, models: [], context: 0,
  runs: new Map(),    // conversation id -> an answer that this tab receives (answers.js)
  remote: new Map(),  // conversation id -> {node, at}: an answer that another tab receives
  queued: new Map(),  // conversation id -> messages {text, files} to send when the answer is complete
  unread: new Set(),  // ids of conversations whose answer ended while another was open
  drafts: new Map(),  // conversation id -> {text, files} in the composer
  search: '', sidebar: false, dialog: null, notice: null, editing: null, renaming: null, isDown: false, announcement: '',
  draftOf: 0,  // counts drafts that did not come from the keyboard
  atEnd: 0,    // counts messages sent: each scrolls to the end
};

let draw = () => {}, scheduled = false;
export function drawWith(function_) {
  draw = function_;
}
export function refresh() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}
export function set(changes) {
  Object.assign(state, changes);
  refresh();
}

// A line above the chat. |action| is {label, run}.
export const notify = (text, action = null) => set({notice: {text, action}});
export const fail = error => notify(error.message ?? String(error));
export const announce = text => set({announcement: text});

// |rev| is the conversation's: its title, system prompt or model changed.
export async function keep(conversation, isEdited = false) {
  if (isEdited) conversation.rev = (conversation.rev ?? 0) + 1;
  try {
    await save(conversation);
    refresh();
  } catch (error) {
    fail(new Error(`the browser could not store the chat: ${error.message}`));
  }
}

export function applyTheme() {
  document.documentElement.dataset.theme = state.settings.theme;
  document.documentElement.dataset.list = state.settings.list;
}
export function setSettings(changes) {
  state.settings = changeSettings(state.settings, changes);
  applyTheme();
  refresh();
}
onSettings(next => {
  state.settings = next;
  applyTheme();
  refresh();
});

// On a phone the list of chats lies over the chat; elsewhere it stands beside it, and its state is kept.
export const isPhone = () => matchMedia('(max-width: 760px)').matches;
export function showList(isShown) {
  if (isPhone()) set({sidebar: isShown});
  else {
    setSettings({list: isShown ? 'shown' : 'hidden'});
    requestAnimationFrame(() => document.getElementById(isShown ? 'close-menu' : 'menu').focus());  // the other button is gone
  }
}

export function focusInput() {
  requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById('input')?.focus({preventScroll: true})));
}
