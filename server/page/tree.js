// Conversations as trees of messages. An edit or a new answer adds a sibling, so no text is ever lost.
//
//   conversation {id, title, created, updated, rev, system, model, root, nodes}
//   node         {id, parent, rev, role, content, reasoning, calls, files, children, chosen, model, stats, finish, error}
//
// |calls| are tool calls {id, name, arguments}, |files| attached texts {name, text}. |rev| counts changes (merge.js).
//
// |root| is a node without text. |chosen| is the child on the visible path. Functions change the conversation in place.

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, '0')).join('');

export function createConversation(system = '') {
  const now = Date.now();
  const root = {id: newId(), parent: null, role: 'root', content: '', children: [], chosen: 0};
  return {id: newId(), title: '', created: now, updated: now, rev: 0, system, model: '', root: root.id, nodes: {[root.id]: root}};
}

export function addNode(conversation, parentId, role, content = '', files = []) {
  const parent = conversation.nodes[parentId];
  const node = {id: newId(), parent: parentId, rev: 0, role, content, reasoning: '', calls: [], files, children: [], chosen: 0, error: ''};
  conversation.nodes[node.id] = node;
  parent.children.push(node.id);
  parent.chosen = parent.children.length - 1;
  conversation.updated = Date.now();
  return node;
}

// The visible messages, first to last.
export function path(conversation) {
  const found = [];
  for (let node = conversation.nodes[conversation.root]; node.children.length;) {
    node = conversation.nodes[node.children[node.chosen]];
    found.push(node);
  }
  return found;
}

export function leaf(conversation) {
  return path(conversation).at(-1) ?? conversation.nodes[conversation.root];
}

// Position of a node among its siblings, from 0, and their number.
export function place(conversation, node) {
  const siblings = conversation.nodes[node.parent].children;
  return {index: siblings.indexOf(node.id), count: siblings.length};
}

export function choose(conversation, node, offset) {
  const parent = conversation.nodes[node.parent];
  const index = parent.children.indexOf(node.id) + offset;
  if (index >= 0 && index < parent.children.length) parent.chosen = index;
}

// A message with its files, as the model reads it. The fence is longer than any in the file.
export function contentOf(node) {
  const parts = (node.files ?? []).map(({name, text}) => {
    const fence = '`'.repeat(Math.max(3, ...(text.match(/`{3,}/g) ?? []).map(run => run.length + 1)));
    return `File ${name}:\n${fence}\n${text}${text.endsWith('\n') ? '' : '\n'}${fence}`;
  });
  return [...parts, node.content].filter(Boolean).join('\n\n');
}

// Messages for the API up to and including |last|.
export function messages(conversation, last) {
  const list = [];
  for (let node = last; node.role !== 'root'; node = conversation.nodes[node.parent]) {
    const message = {role: node.role, content: contentOf(node)};
    if (node.reasoning) message.reasoning_content = node.reasoning;
    if (node.calls?.length) message.tool_calls = node.calls.map(call => ({id: call.id, type: 'function', function: {name: call.name, arguments: call.arguments}}));
    list.push(message);
  }
  if (conversation.system) list.push({role: 'system', content: conversation.system});
  return list.reverse();
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const message = path(conversation)[0];
  const first = message?.content.trim().split('\n')[0] || message?.files?.[0]?.name || '';
  return first.length > 60 ? first.slice(0, 59) + '…' : first || 'New chat';
}

export function contains(conversation, words) {
  const text = (titleOf(conversation) + '\n' + Object.values(conversation.nodes).map(n => n.content).join('\n')).toLowerCase();
  return words.toLowerCase().split(/\s+/).every(word => text.includes(word));
}

// Checks an imported conversation. Returns a clean copy, or throws an Error that names the field.
export function checkConversation(value, where) {
  const need = (ok, field) => { if (!ok) throw new Error(`${where}: field '${field}' is missing or has the wrong type`); };
  const isText = v => typeof v === 'string';
  need(value && typeof value === 'object', 'conversation');
  need(isText(value.root), 'root');
  const textsOf = (list, ...names) => (Array.isArray(list) ? list : []).filter(v => v && names.every(name => isText(v[name])))
    .map(v => Object.fromEntries(names.map(name => [name, v[name]])));
  need(value.nodes && typeof value.nodes === 'object' && value.nodes[value.root]?.role === 'root', 'nodes');
  const nodes = {};
  const visit = (id, parent, depth) => {
    const node = value.nodes[id];
    need(node && !nodes[id] && depth < 10000 && isText(node.role) && Array.isArray(node.children), `nodes.${id}`);
    need(['root', 'user', 'assistant'].includes(node.role) && (node.role === 'root') === (parent === null), `nodes.${id}.role`);
    const chosen = Number.isInteger(node.chosen) && node.chosen >= 0 && node.chosen < Math.max(1, node.children.length) ? node.chosen : 0;
    nodes[id] = {id, parent, rev: 0, role: node.role, content: isText(node.content) ? node.content : '', reasoning: isText(node.reasoning) ? node.reasoning : '',
                 calls: textsOf(node.calls, 'id', 'name', 'arguments'), files: textsOf(node.files, 'name', 'text'), finish: isText(node.finish) && node.finish ? node.finish : 'stop',
                 error: isText(node.error) ? node.error : '', children: node.children.map(String), chosen, model: isText(node.model) ? node.model : ''};
    return nodes[id].children;
  };
  const stack = [[value.root, null, 0]];
  while (stack.length) {
    const [id, parent, depth] = stack.pop();
    for (const child of visit(id, parent, depth)) stack.push([child, id, depth + 1]);
  }
  const time = v => Number.isFinite(v) ? v : Date.now();
  return {id: newId(), title: isText(value.title) ? value.title : '', created: time(value.created), updated: time(value.updated), rev: 0,
          system: isText(value.system) ? value.system : '', model: isText(value.model) ? value.model : '', root: value.root, nodes};
}
