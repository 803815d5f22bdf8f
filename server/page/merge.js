// Joins two states of one conversation, such as those of two tabs. Messages are only ever added, so no message is lost.
//
// |rev| of a message counts its changes: the higher one has the newer text. |rev| of a conversation does so for title, system prompt
// and model. |into| keeps its objects and its view: the branches that it shows.
export function merge(into, other) {
  for (const theirs of Object.values(other.nodes)) {
    const mine = into.nodes[theirs.id];
    if (!mine) {
      into.nodes[theirs.id] = theirs;
      continue;
    }
    const known = new Set(theirs.children);
    const order = [...theirs.children, ...mine.children.filter(id => !known.has(id))];
    const shown = mine.children[mine.chosen] ?? theirs.children[theirs.chosen];
    if ((theirs.rev ?? 0) > (mine.rev ?? 0)) Object.assign(mine, theirs);
    mine.children = order;
    mine.chosen = Math.max(0, order.indexOf(shown));
  }
  if ((other.rev ?? 0) > (into.rev ?? 0)) Object.assign(into, {title: other.title, system: other.system, model: other.model, rev: other.rev});
  into.updated = Math.max(into.updated, other.updated);
}
