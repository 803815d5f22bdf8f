// One message: text, reasoning, tool calls, files, what went wrong, and what can be done with it.
import {html, useEffect, useLayoutEffect, useRef, useState} from './htm.js';
import {answerAgain, answerMessage, continueAnswer, isBusy, isRemote, retry, runOf, submitEdit} from './answers.js';
import {copyText} from './clipboard.js';
import {Button, Icon} from './icons.js';
import {formatJson} from './json_text.js';
import {LiveText} from './live_text.js';
import {codeBlock} from './markdown.js';
import {keep, refresh, set, state} from './state.js';
import {choose, place} from './tree.js';

const FOLD_LENGTH = 1500, FOLD_LINES = 16;

function Body({text, live}) {
  const element = useRef(), view = useRef();
  useLayoutEffect(() => {
    view.current ??= new LiveText(element.current);
    view.current.update(text, live);
  }, [text, live]);
  return html`<div class=${'body' + (live ? ' live' : '')} ref=${element} />`;
}

function Reasoning({node, live}) {
  const [open, setOpen] = useState(false);
  if (!node.reasoning) return null;
  return html`<details class="reasoning" open=${open} onToggle=${event => setOpen(event.target.open)}>
    <summary>${live && !node.content ? 'Thinking…' : 'Thoughts'}</summary>
    ${open && html`<${Body} text=${node.reasoning} live=${live && !node.content} />`}
  </details>`;
}

function Call({call}) {
  const element = useRef();
  useLayoutEffect(() => element.current.replaceChildren(codeBlock(formatJson(call.arguments), 'json', false)), [call.arguments]);
  return html`<section class="call" aria-label=${`Tool call ${call.name}`}><p><${Icon} name="tool" />calls <strong>${call.name}</strong></p><div ref=${element} /></section>`;
}

function File({file, onRemove}) {
  const size = file.text.length < 1000 ? `${file.text.length} characters` : `${Math.round(file.text.length / 1000)} K characters`;
  return html`<details class="file"><summary><${Icon} name="file" /><span class="name">${file.name}</span> <small>${size}</small></summary>
    <pre tabindex="0">${file.text}</pre></details>
    ${onRemove && html`<${Button} quiet icon="close" label=${`Remove ${file.name}`} onClick=${onRemove} />`}`;
}
export const Files = ({files, onRemove}) => !!files?.length && html`<ul class="files" aria-label="Attached files">
  ${files.map((file, i) => html`<li key=${file.name + i}><${File} file=${file} onRemove=${onRemove && (() => onRemove(i))} /></li>`)}</ul>`;

// What the user wrote. Long texts are folded.
function Plain({text}) {
  const [open, setOpen] = useState(false);
  const lines = text.split('\n').length, isLong = text.length > FOLD_LENGTH || lines > FOLD_LINES;
  return html`<div class=${'body plain' + (isLong && !open ? ' folded' : '')}>${text}</div>
    ${isLong && html`<button type="button" class="fold" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      ${open ? 'Show less' : `Show all ${lines > 1 ? `${lines} lines` : `${text.length} characters`}`}</button>`}`;
}

function Branches({node}) {
  const {index, count} = place(state.current, node);
  if (count < 2) return null;
  const go = offset => { choose(state.current, node, offset); keep(state.current); refresh(); };
  return html`<span class="branches" role="group" aria-label="Versions">
    <${Button} quiet icon="back" label="Previous version" disabled=${index === 0} onClick=${() => go(-1)} />
    <span>${index + 1} / ${count}</span>
    <${Button} quiet icon="next" label="Next version" disabled=${index === count - 1} onClick=${() => go(1)} />
  </span>`;
}

export function grow(area) {
  area.style.height = 'auto';
  area.style.height = Math.min(area.scrollHeight + 2, innerHeight * 0.4) + 'px';
}

function Editor({node}) {
  const area = useRef();
  useEffect(() => { area.current.focus(); grow(area.current); }, []);
  const submit = () => submitEdit(state.current, node, area.current.value);
  const onKey = event => {
    if (event.key === 'Escape') { event.stopPropagation(); set({editing: null}); }
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

function Copy({text}) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<${Button} icon=${done ? 'check' : 'copy'} label=${done ? 'Copied' : 'Copy'} onClick=${copy} />`;
}

// How the answer ended, if it did not end by itself, and how to go on.
function Ending({node, busy}) {
  const [text, role] = node.error ? [node.error, 'alert'] : node.finish === 'length' ? ['The answer reached its token limit.'] : node.finish === 'stopped' ? ['Stopped.']
    : !node.finish && node.rev !== undefined ? [isRemote(state.current) ? 'Another tab receives this answer.' : 'The answer was interrupted.'] : [];
  if (!text) return null;
  return html`<div class=${node.error ? 'ending error' : 'ending'}><p role=${role}>${text}</p>
    ${!busy && html`<span class="row">
      ${node.content && html`<${Button} icon="resume" label="Continue" onClick=${() => continueAnswer(state.current, node)} />`}
      ${(node.error || !node.finish) && html`<${Button} icon="again" label="Retry" onClick=${() => retry(state.current, node)} />`}</span>`}
  </div>`;
}

// Until the first token: what the page waits for, and for how long.
function Waiting({run}) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick(n => n + 1), 1000); return () => clearInterval(timer); }, []);
  const seconds = Math.floor((performance.now() - run.started) / 1000), others = state.runs.size - 1;
  return html`<div class="waiting" role="status">${run.isStopping ? 'Stopping…' : 'Reading the prompt…'}${seconds > 2 && html`<span aria-hidden="true"> ${seconds} s</span>`}
    ${others > 0 && ` · ${others} other ${others > 1 ? 'chats are' : 'chat is'} answering`}</div>`;
}

function Actions({node, last, busy}) {
  const chat = state.current;
  return html`<${Branches} node=${node} />
    <${Copy} text=${node.content} />
    ${!busy && html`<${Button} icon="edit" label="Edit" onClick=${() => set({editing: node.id})} />`}
    ${!busy && last && node.role === 'assistant' && html`<${Button} icon="again" label="Regenerate" onClick=${() => answerAgain(chat, node)} />`}
    ${!busy && last && node.role === 'user' && html`<${Button} icon="resume" label="Answer" onClick=${() => answerMessage(chat, node)} />`}
    <${Stats} node=${node} />`;
}

export function Message({node, last}) {
  const run = runOf(state.current), live = run?.node === node, busy = isBusy(state.current);
  const isEditing = state.editing === node.id, isUser = node.role === 'user';
  const isWaiting = live && !run.hasText;
  return html`<article class=${`message ${node.role}${last ? ' last' : ''}`} data-role=${node.role} aria-label=${isUser ? 'You' : `Answer${node.model ? ` of ${node.model}` : ''}`}
      aria-busy=${live ? 'true' : undefined}>
    <${Reasoning} node=${node} live=${live} />
    ${isUser && html`<${Files} files=${node.files} />`}
    ${isEditing ? html`<${Editor} node=${node} />` : isUser ? node.content && html`<${Plain} text=${node.content} />` : html`<${Body} text=${node.content} live=${live} />`}
    ${node.calls?.map((call, i) => html`<${Call} key=${i} call=${call} />`)}
    ${isWaiting && html`<${Waiting} run=${run} />`}
    ${!live && !isUser && last && html`<${Ending} node=${node} busy=${busy} />`}
    ${!isEditing && html`<footer>${live ? html`<span class="stats">${run.isStopping ? 'Stopping…' : ''}</span>` : html`<${Actions} node=${node} last=${last} busy=${busy} />`}</footer>`}
  </article>`;
}
