// Conversations as trees of messages. An edit or a new answer adds a sibling, so no text is ever lost.
//
//   conversation {id, title, created, updated, system, model, root, nodes}
//   node         {id, parent, role, content, reasoning, children, chosen, model, stats, error}
//
// |root| is a node without text. |chosen| is the child on the visible path. Functions change the conversation in place.

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, '0')).join('');

export function createConversation(system = '') {
  const now = Date.now();
  const root = {id: newId(), parent: null, role: 'root', content: '', children: [], chosen: 0};
  return {id: newId(), title: '', created: now, updated: now, system, model: '', root: root.id, nodes: {[root.id]: root}};
}

export function addNode(conversation, parentId, role, content = '') {
  const parent = conversation.nodes[parentId];
  const node = {id: newId(), parent: parentId, role, content, reasoning: '', children: [], chosen: 0};
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

// Messages for the API up to and including |last|.
export function messages(conversation, last) {
  const list = [];
  for (let node = last; node.role !== 'root'; node = conversation.nodes[node.parent]) {
    const message = {role: node.role, content: node.content};
    if (node.reasoning) message.reasoning_content = node.reasoning;
    list.unshift(message);
  }
  if (conversation.system) list.unshift({role: 'system', content: conversation.system});
  return list;
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = path(conversation)[0]?.content.trim().split('\n')[0] ?? '';
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
  need(value.nodes && typeof value.nodes === 'object' && value.nodes[value.root]?.role === 'root', 'nodes');
  const nodes = {};
  const visit = (id, parent, depth) => {
    const node = value.nodes[id];
    need(node && !nodes[id] && depth < 10000 && isText(node.role) && Array.isArray(node.children), `nodes.${id}`);
    need(['root', 'user', 'assistant'].includes(node.role) && (node.role === 'root') === (parent === null), `nodes.${id}.role`);
    const chosen = Number.isInteger(node.chosen) && node.chosen >= 0 && node.chosen < Math.max(1, node.children.length) ? node.chosen : 0;
    nodes[id] = {id, parent, role: node.role, content: isText(node.content) ? node.content : '', reasoning: isText(node.reasoning) ? node.reasoning : '',
                 children: node.children.map(String), chosen, model: isText(node.model) ? node.model : ''};
    return nodes[id].children;
  };
  const stack = [[value.root, null, 0]];
  while (stack.length) {
    const [id, parent, depth] = stack.pop();
    for (const child of visit(id, parent, depth)) stack.push([child, id, depth + 1]);
  }
  const time = v => Number.isFinite(v) ? v : Date.now();
  return {id: newId(), title: isText(value.title) ? value.title : '', created: time(value.created), updated: time(value.updated),
          system: isText(value.system) ? value.system : '', model: isText(value.model) ? value.model : '', root: value.root, nodes};
}
