// Stands between the page and the server. A grammar, added to each request, makes the model write the text that a case needs; and the
// network can be slow, be gone, or break in the middle of an answer.
import http from 'node:http';

export const HOSTILE = [
  '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>',
  '<a href="javascript:window.hacked=3">click</a> [link](javascript:window.hacked=4) <svg onload="window.hacked=5"></svg>',
  '![x](http://198.51.100.1/track.png) <iframe src="http://198.51.100.1/"></iframe> <form action="http://198.51.100.1/"><input></form>',
  '<style>body{display:none}</style><div style="position:fixed;inset:0" id="app">cover</div>',
  '$\\href{javascript:window.hacked=6}{x}$ $$\\htmlData{a=b}{x}$$ `<b>code</b>`',
  '<math><mtext></mtext><style><img src=x onerror="window.hacked=7"></style></math>',
].join('\n\n');

const MARKDOWN = ['# Title', '', 'Text with `code`, **bold** and $a^2 + b^2 = c^2$; it costs $5 or $6.', '', '$$\\int_0^1 x\\,dx = \\frac{1}{2}$$', '', '```python',
  'def f(x):', '    return x + 1', '```', '', '| a | b |', '| - | - |', '| 1 | 2 |', ''].join('\n');
// Answers whose look matters: the proxy streams them itself, which takes less time than a model.
const LOOKS = {hostile: HOSTILE, markdown: MARKDOWN, html: 'A List<String> or vector<int>; a<b and c>d\n\n<form>\n\n- [ ] to do\n- [x] done\n',
  json: '{"name": "x", "list": [1, 12345678901234567890], "empty": {}}'};
const CALL = [{tool_calls: [{index: 0, id: 'call_1', type: 'function', function: {name: 'weather', arguments: '{"city": "Os'}}]},
  {tool_calls: [{index: 0, function: {arguments: 'lo", "days": [1, 2]}'}}]}];
const textParts = text => text.match(/[\s\S]{1,7}/g).map(content => ({content}));

async function stream(response, deltas, finish_reason) {
  const send = choice => response.write(`data: ${JSON.stringify({choices: [{index: 0, delta: {}, finish_reason: null, ...choice}]})}\n\n`);
  response.writeHead(200, {'Content-Type': 'text/event-stream'});
  for (const delta of deltas) {
    send({delta});
    await new Promise(done => setTimeout(done, 5));
  }
  send({finish_reason});
  response.end('data: [DONE]\n\n');
}

// What a request gets besides the fields that the page sends.
function fields(body) {
  const last = String(body.messages.at(-1).content);
  if (body.continue_final_message) return {grammar: 'root ::= "and the rest."'};
  if (last.startsWith('Write a title')) return {grammar: 'root ::= "\\"Bright Colours\\""'};
  if (last === 'think') return {max_tokens: 24};  // think.jinja begins a reasoning; what the model writes is real
  if (last === 'fail') return {temperature: -3};
  if (last === 'limit') return {max_tokens: 4, grammar: 'root ::= "one two three four five six seven eight nine ten"'};
  return {grammar: `root ::= ${JSON.stringify(last === 'slow' ? 'word '.repeat(300) : `You said: ${last.split('\n')[0].slice(0, 80)}`)}`};
}

function bodyOf(request) {
  return new Promise(done => {
    const parts = [];
    request.on('data', part => parts.push(part));
    request.on('end', () => done(Buffer.concat(parts)));
  });
}

// The state of |network|: requests, isGone, delay (ms before each answer), cutAfter (bytes of a
// stream), looks (messages and the answers that the proxy itself streams to them), models (a promise of the names that /v1/models lists;
// null: those of the server).
export async function startProxy(server) {
  const target = new URL(server.url), network = {};
  const reset = () => Object.assign(network, {requests: [], isGone: false, delay: 0, cutAfter: 0, looks: LOOKS, models: null});
  reset();
  const forward = (request, response, body) => {
    const headers = {...request.headers, ...(body.length ? {'content-length': body.length} : {})};
    // A connection of its own: the server may close an idle one while a request is on its way, and the page would show that it is down.
    const upstream = http.request({agent: false, host: target.hostname, port: target.port, method: request.method, path: request.url, headers}, answer => {
      response.writeHead(answer.statusCode, answer.headers);
      let left = network.cutAfter && request.url.endsWith('completions') ? network.cutAfter : Infinity;
      answer.on('data', part => {
        response.write(part);
        left -= part.length;
        if (left < 0) setTimeout(() => { upstream.destroy(); response.socket?.destroy(); }, 100);
      });
      answer.on('end', () => response.end());
    });
    upstream.on('error', () => response.socket?.destroy());
    response.on('close', () => upstream.destroy());
    upstream.end(body);
  };
  const listener = http.createServer(async (request, response) => {
    if (network.isGone) return request.socket.destroy();
    let body = await bodyOf(request);
    if (network.delay) await new Promise(done => setTimeout(done, network.delay));
    if (network.models && request.url.endsWith('/v1/models')) {
      const data = (await network.models).map(id => ({id, object: 'model'}));
      return response.writeHead(200, {'Content-Type': 'application/json'}).end(JSON.stringify({object: 'list', data}));
    }
    if (request.url.endsWith('/v1/chat/completions')) {
      const value = JSON.parse(body);
      network.requests.push(value);
      const last = value.messages.at(-1).content;
      if (last === 'silent') return undefined;
      const {looks} = network;
      if (last === 'call' || looks[last]) return stream(response, last === 'call' ? CALL : textParts(looks[last]), last === 'call' ? 'tool_calls' : 'stop');
      body = Buffer.from(JSON.stringify({...value, ...fields(value)}));
    }
    return forward(request, response, body);
  });
  await new Promise(done => listener.listen(0, '127.0.0.1', done));
  return {url: `http://127.0.0.1:${listener.address().port}/`, network, reset, server, stop: () => { listener.closeAllConnections(); listener.close(); }};
}
