// Answers: requests, streams, the queue of messages that wait, and titles. Each conversation has at most one answer at a time.
import {ApiError, completeChat, getJson, isAlive, streamChat} from './api.js';
import {tell} from './store.js';
import {announce, fail, focusInput, keep, refresh, set, state} from './state.js';
import {addNode, leaf, messages, path} from './tree.js';

const SAVE_MS = 1000;        // while an answer streams
const BEAT_MS = 2000, REMOTE_MS = 7000;  // a tab that answers says so this often; one that is silent for longer has gone
const PROBE_MS = [500, 1000, 2000, 4000];
const TITLE_WORDS = 8, TITLE_LENGTH = 60;

export const modelOf = conversation => [conversation.model, state.settings.model].find(name => state.models.includes(name)) ?? state.models[0] ?? '';
export const runOf = conversation => state.runs.get(conversation.id);
export const isRemote = conversation => performance.now() - (state.remote.get(conversation.id)?.at ?? -Infinity) < REMOTE_MS;
export const isBusy = conversation => state.runs.has(conversation.id) || isRemote(conversation);

// ---- the server -------------------------------------------------------------------------------------------------

export async function loadServer() {
  try {
    const models = (await getJson('v1/models', state.settings.key)).data.map(model => model.id);
    const props = await getJson('props', state.settings.key);
    set({models, context: props.default_generation_settings?.n_ctx ?? 0, isDown: false});
  } catch (error) {
    failServer(error);
  }
}

function failServer(error) {
  if (error.status === 401) set({dialog: 'key'});
  else if (error.status === 0) serverIsDown();
  else fail(error);
}

// Asks until the server answers again.
let probe = 0;
function serverIsDown() {
  if (state.isDown) return;
  set({isDown: true});
  const again = async count => {
    if (await isAlive()) loadServer();
    else probe = setTimeout(again, PROBE_MS[Math.min(count, PROBE_MS.length - 1)], count + 1);
  };
  clearTimeout(probe);
  probe = setTimeout(again, PROBE_MS[0], 1);
}
export async function tryServer() {
  if (await isAlive()) await loadServer();
  else announce('The server still does not answer.');
}

// ---- one answer -------------------------------------------------------------------------------------------------

function makeRequest(conversation, last) {
  const {settings} = state;
  const request = {messages: messages(conversation, last)};
  if (conversation.model || state.settings.model) request.model = modelOf(conversation);
  for (const name of ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed']) {
    const value = parseFloat(settings[name]);
    if (Number.isFinite(value)) request[name] = value;
  }
  if (settings.think !== 'default') request.chat_template_kwargs = {enable_thinking: settings.think === 'on'};
  if (settings.extra.trim()) {
    try {
      Object.assign(request, JSON.parse(settings.extra));
    } catch (error) {
      throw new Error(`settings, extra fields: ${error.message}`, {cause: error});
    }
  }
  if (last.role === 'assistant') Object.assign(request, {continue_final_message: true, add_generation_prompt: false});
  return request;
}

function addCalls(node, calls) {
  for (const call of calls) {
    const at = call.index ?? 0;
    node.calls[at] ??= {id: call.id ?? '', name: '', arguments: ''};
    node.calls[at].name += call.function?.name ?? '';
    node.calls[at].arguments += call.function?.arguments ?? '';
  }
}

function receive(run, delta) {
  const {node} = run;
  if (delta.text || delta.reasoning || delta.calls.length) {
    run.hasText = true;
    node.content += delta.text;
    node.reasoning += delta.reasoning;
    addCalls(node, delta.calls);
    node.rev += 1;
  }
  run.heard = performance.now();
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
    keep(run.conversation);
  }
  refresh();
}

async function stream(run, last) {
  const {conversation, node} = run;
  const beat = setInterval(() => { tell({type: 'live', id: conversation.id, node: node.id}); refresh(); }, BEAT_MS);
  tell({type: 'live', id: conversation.id, node: node.id});
  try {
    const request = makeRequest(conversation, last);
    node.model = request.model ?? state.models[0] ?? '';
    await streamChat(request, state.settings.key, run.abort.signal, delta => receive(run, delta));
    if (state.isDown) loadServer();
  } catch (error) {
    if (run.isLeft) {
      clearInterval(beat);
      return;
    }
    if (error.name === 'AbortError') {
      node.finish = 'stopped';
    } else {
      node.finish = 'error';
      node.error = error.message;
      if (error.status === 401) unanswered.add(node);
      if (error instanceof ApiError && (error.status === 401 || error.status === 0)) failServer(error);
    }
  }
  clearInterval(beat);
}

// Generates |node|, or a new answer to |parent|. With text in |node|, the answer continues it.
async function answer(conversation, parent, node = null) {
  if (isBusy(conversation)) return;
  titleRun?.abort();
  const last = node?.content ? node : parent;
  node ??= addNode(conversation, parent.id, 'assistant');
  Object.assign(node, {error: '', finish: '', rev: (node.rev ?? 0) + 1, calls: node.calls ?? []});
  const now = performance.now();
  const run = {conversation, node, abort: new AbortController(), started: now, heard: now, saved: now, hasText: false, isStopping: false, isLeft: false};
  if (!state.conversations.includes(conversation)) state.conversations.push(conversation);
  state.runs.set(conversation.id, run);
  set({notice: null, editing: null, announcement: 'Answering'});
  await keep(conversation);  // a reload before the first token must not lose the user's message
  await stream(run, last);
  conversation.updated = Date.now();
  node.rev += 1;
  state.runs.delete(conversation.id);
  await keep(conversation);
  tell({type: 'live', id: conversation.id, node: null});
  ended(run);
}

function ended({conversation, node}) {
  if (state.current === conversation) {
    announce(node.error || (node.finish === 'stopped' ? 'Stopped' : `Answer: ${node.content.slice(0, 3000)}`));
    if (document.activeElement === document.body) focusInput();
  } else {
    state.unread.add(conversation.id);
    refresh();
  }
  if (!node.error && !sendNext(conversation)) makeTitle(conversation);
}

// ---- what the user does -----------------------------------------------------------------------------------------

// Sends a message, or queues it while the conversation answers.
export function send(conversation, text, files) {
  if (!text.trim() && !files.length) return false;
  if (isBusy(conversation)) {
    state.queued.set(conversation.id, [...state.queued.get(conversation.id) ?? [], {text, files}]);
    announce('The message waits for the end of the answer');
    return true;
  }
  answer(conversation, addNode(conversation, leaf(conversation).id, 'user', text, files));
  return true;
}

export function sendNext(conversation) {
  const [next, ...rest] = state.queued.get(conversation.id) ?? [];
  if (!next || isBusy(conversation)) return false;
  state.queued.set(conversation.id, rest);
  return send(conversation, next.text, next.files);
}

export function takeQueued(conversation, index) {
  const list = state.queued.get(conversation.id) ?? [];
  state.queued.set(conversation.id, list.filter((_, i) => i !== index));
  refresh();
  return list[index];
}

export function stop(conversation) {
  const run = runOf(conversation);
  if (!run) return;
  run.isStopping = true;
  run.abort.abort();
  announce('Stopping');
}

// The page goes away. The answer stays without an end: it was interrupted.
export function leave() {
  for (const run of state.runs.values()) {
    run.isLeft = true;
    keep(run.conversation);
  }
}

export const answerAgain = (conversation, node) => answer(conversation, conversation.nodes[node.parent]);
export const answerMessage = (conversation, node) => answer(conversation, node);
export const continueAnswer = (conversation, node) => answer(conversation, conversation.nodes[node.parent], node);
// After an error: an answer without text is written again, one with text stays as a branch.
export const retry = (conversation, node) => answer(conversation, conversation.nodes[node.parent], node.content || node.reasoning ? null : node);

export function submitEdit(conversation, node, text) {
  if (isBusy(conversation)) return;
  if (node.role === 'user') {
    answer(conversation, addNode(conversation, node.parent, 'user', text, node.files));
    return;
  }
  const edited = addNode(conversation, node.parent, 'assistant', text);
  Object.assign(edited, {reasoning: node.reasoning, model: node.model, finish: 'stop'});
  keep(conversation);
  set({editing: null});
}

// Answers that wait for the right key.
const unanswered = new Set();
export function retryUnanswered() {
  for (const node of unanswered) {
    const conversation = state.conversations.find(c => c.nodes[node.id] === node);
    if (conversation) retry(conversation, node);
  }
  unanswered.clear();
}

// ---- titles -----------------------------------------------------------------------------------------------------

let titleRun = null;

function cleanTitle(text) {
  const line = text.replace(/<think>[\s\S]*?(?:<\/think>|$)/g, '').trim().split('\n')[0].replace(/^(?:title|chat title)\s*:\s*/i, '');
  const title = line.replace(/^["'“”*#`\s]+|["'“”*`.\s]+$/g, '');
  return title.length <= TITLE_LENGTH && title.split(/\s+/).length <= TITLE_WORDS ? title : '';
}

// Asks the model for a title after the first answer. A message that is sent meanwhile ends this; the first words stay the title then.
async function makeTitle(conversation) {
  const shown = path(conversation);
  if (state.settings.titles !== 'model' || conversation.title || shown.length !== 2 || !shown[0].content || state.runs.size) return;
  titleRun = new AbortController();
  const content = `Write a title of two to five words for a chat that begins with the following message. Answer with the title only.\n\n${shown[0].content.slice(0, 500)}`;
  try {
    const text = await completeChat({model: modelOf(conversation), messages: [{role: 'user', content}], max_tokens: 24, temperature: 0,
                                     chat_template_kwargs: {enable_thinking: false}}, state.settings.key, titleRun.signal);
    const title = cleanTitle(text);
    if (!title || conversation.title) return;
    conversation.title = title;
    await keep(conversation, true);
  } catch { /* the first words are the title */ }
}

// ---- other tabs -------------------------------------------------------------------------------------------------

export function heardLive({id, node}) {
  if (node) {
    state.remote.set(id, {node, at: performance.now()});
    setTimeout(() => { refresh(); const found = state.conversations.find(c => c.id === id); if (found) sendNext(found); }, REMOTE_MS + 100);
  } else {
    state.remote.delete(id);
    const found = state.conversations.find(c => c.id === id);
    if (found) sendNext(found);
  }
  refresh();
}
