// JSON for reading. The text is indented as it is: numbers, escapes and repeated keys stay what the model wrote.

// Whether an answer is JSON: so far, if it is still |live|.
export function looksLikeJson(text, live) {
  if (!/^\s*(?:\{\s*(?:["}]|$)|\[\s*["{[])/.test(text)) return false;
  if (live) return true;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export function formatJson(text) {
  const found = [...text.matchAll(/"(?:[^"\\]|\\[\s\S])*"?|[{}[\],:]|[^\s"{}[\],:]+/g)], parts = found.map(match => match[0]);
  const isMark = part => /^[{}[\],:]$/.test(part ?? ',');
  let result = '', depth = 0;
  const newLine = () => '\n' + '  '.repeat(depth);
  parts.forEach((part, i) => {
    const isEmpty = /[{[]/.test(part) && part.length === 1 && /^[}\]]$/.test(parts[i + 1] ?? '');
    if (part === '{' || part === '[') {
      depth += 1;
      result += part + (isEmpty ? '' : newLine());
    } else if (part === '}' || part === ']') {
      depth = Math.max(0, depth - 1);
      result += (/^[{[]$/.test(parts[i - 1] ?? '') ? '' : newLine()) + part;
    } else if (part === ',') {
      result += part + newLine();
    } else {
      // Text that is not JSON keeps the spaces between its words.
      const isApart = !isMark(part) && !isMark(parts[i - 1]) && /\s/.test(text[found[i].index - 1]);
      result += part === ':' ? ': ' : isApart ? ` ${part}` : part;
    }
  });
  return result;
}
