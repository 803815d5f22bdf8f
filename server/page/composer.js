// The field for a message, with files and with the messages that wait.
import {html, useEffect, useRef, useState} from './htm.js';
import {isBusy, runOf, send, sendNext, stop, takeQueued} from './answers.js';
import {address} from './chats.js';
import {Button} from './icons.js';
import {Files, grow} from './message.js';
import {fail, refresh, set, state} from './state.js';
import {path} from './tree.js';

const MOST_BYTES = 1 << 20;

async function readText(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${Math.ceil(file.size / MOST_BYTES)} MiB: a file may have up to 1 MiB of text`);
  try {
    const text = new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer());
    if (!text.includes('\0')) return {name: file.name, text};
  } catch { /* not UTF-8 */ }
  throw new Error(`${file.name} is not text: this model reads text files only`);
}

function Queue({chat}) {
  const waiting = state.queued.get(chat.id) ?? [];
  if (!waiting.length) return null;
  const edit = i => {
    const {text, files} = takeQueued(chat, i);
    state.drafts.set(chat.id, {text, files});
    set({draftOf: state.draftOf + 1});
  };
  return html`<ul class="queue" aria-label="Messages that wait">${waiting.map((message, i) => html`<li key=${message.text + i}>
    <span class="dim">Waits</span><span class="name">${message.text || message.files[0].name}</span>
    ${!isBusy(chat) && i === 0 && html`<${Button} icon="send" label="Send now" onClick=${() => sendNext(chat)} />`}
    <${Button} quiet icon="edit" label="Edit the waiting message" onClick=${() => edit(i)} />
    <${Button} quiet icon="close" label="Remove the waiting message" onClick=${() => takeQueued(chat, i)} /></li>`)}</ul>`;
}

export function Composer() {
  const chat = state.current, draft = state.drafts.get(chat.id) ?? {text: '', files: []};
  const area = useRef(), picker = useRef();
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    area.current.value = draft.text;
    grow(area.current);
  }, [chat.id, state.draftOf]);
  const change = changes => { state.drafts.set(chat.id, {...state.drafts.get(chat.id) ?? {text: '', files: []}, ...changes}); refresh(); };
  const attach = async list => {
    for (const file of list) {
      try {
        const read = await readText(file);
        change({files: [...state.drafts.get(chat.id)?.files ?? [], read]});
      } catch (error) {
        fail(error);
      }
    }
  };
  const submit = () => {
    if (!send(chat, area.current.value, draft.files)) return;
    address(chat);
    state.drafts.delete(chat.id);
    area.current.value = '';
    grow(area.current);
    set({atEnd: state.atEnd + 1});
  };
  const onKey = event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === 'ArrowUp' && !area.current.value) {
      const mine = path(chat).filter(node => node.role === 'user').at(-1);
      if (mine && !isBusy(chat)) set({editing: mine.id});
    }
  };
  const drop = event => { event.preventDefault(); setOver(false); attach(event.dataTransfer.files); };
  const paste = event => { if (event.clipboardData.files.length) { event.preventDefault(); attach(event.clipboardData.files); } };
  const run = runOf(chat), hasText = !!draft.text.trim() || draft.files.length > 0;
  return html`<form class=${isOver ? 'composer over' : 'composer'} aria-label="Write a message" onSubmit=${event => { event.preventDefault(); submit(); }}
      onDragOver=${event => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <${Queue} chat=${chat} />
    <${Files} files=${draft.files} onRemove=${i => change({files: draft.files.filter((_, at) => at !== i)})} />
    <div class="field">
      <${Button} quiet icon="clip" id="attach" label="Attach text files" onClick=${() => picker.current.click()} />
      <input type="file" id="attach-file" multiple hidden ref=${picker} aria-label="Text files" onChange=${event => { attach([...event.target.files]); event.target.value = ''; }} />
      <textarea id="input" ref=${area} rows="1" placeholder=${run ? 'Write the next message; it waits for the answer' : 'Message'} aria-label="Message"
        onInput=${event => { grow(event.target); change({text: event.target.value}); }} onKeyDown=${onKey} onPaste=${paste} />
      ${run && !hasText ? html`<${Button} icon="stop" id="stop" className="primary" label=${run.isStopping ? 'Stopping…' : 'Stop'} disabled=${run.isStopping} onClick=${() => stop(chat)} />`
        : html`<button type="submit" class="primary" id="send" disabled=${!hasText} aria-label=${run ? 'Send after this answer' : undefined}>${run ? 'Queue' : 'Send'}</button>`}
    </div>
  </form>`;
}
