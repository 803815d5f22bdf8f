// Serves the chat page and a small part of the API with scripted answers, so that a test knows every byte.
import {createServer} from 'node:http';
import {readFileSync, existsSync} from 'node:fs';
import {join} from 'node:path';

const TYPES = {html: 'text/html; charset=utf-8', js: 'text/javascript; charset=utf-8', css: 'text/css; charset=utf-8', svg: 'image/svg+xml'};

// |answer|(request) returns {reasoning, text, delay, pause, status, error}; delay and pause are milliseconds before the first token and between tokens. |policy| is the Content-Security-Policy header.
export async function startMock(folders, policy, answer) {
  const requests = [];
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, 'http://mock').pathname;
    const send = (status, type, body) => response.writeHead(status, {'Content-Type': type, 'Content-Security-Policy': policy}).end(body);
    if (path === '/v1/models') return send(200, 'application/json', '{"object":"list","data":[{"id":"mock-model"}]}');
    if (path === '/props') return send(200, 'application/json', '{"default_generation_settings":{"n_ctx":2048}}');
    if (path === '/v1/chat/completions') return chat(request, response);
    const name = path === '/' ? 'index.html' : path.replace('/page/', '');
    const file = folders.map(folder => join(folder, name)).find(existsSync);
    return file ? send(200, TYPES[name.split('.').at(-1)], readFileSync(file)) : send(404, 'text/plain', 'not found');
  });

  async function chat(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = JSON.parse(Buffer.concat(chunks).toString());
    const entry = {body, gone: false};
    requests.push(entry);
    response.on('close', () => { entry.gone = !response.writableFinished; });
    const script = answer(body);
    if (script.status) return response.writeHead(script.status, {'Content-Type': 'application/json'}).end(JSON.stringify({error: {message: script.error}}));
    response.writeHead(200, {'Content-Type': 'text/event-stream'});
    const frame = value => response.write(`data: ${JSON.stringify(value)}\n\n`);
    const delta = value => frame({id: 'x', object: 'chat.completion.chunk', choices: [{index: 0, delta: value, finish_reason: null}]});
    delta({role: 'assistant'});
    response.write(': waiting\n\n');
    if (script.delay) await new Promise(done => { setTimeout(done, script.delay).unref(); response.on('close', done); });
    for (const piece of script.reasoning?.match(/[\s\S]{1,7}/g) ?? []) delta({reasoning_content: piece, reasoning: piece});
    for (const piece of script.text.match(/[\s\S]{1,7}/g) ?? []) {
      if (entry.gone) return undefined;
      delta({content: piece});
      if (script.pause) await new Promise(done => setTimeout(done, script.pause));
    }
    frame({id: 'x', choices: [{index: 0, delta: {}, finish_reason: 'stop'}], timings: {predicted_per_second: 123.4}});
    frame({id: 'x', choices: [], usage: {prompt_tokens: 10, completion_tokens: 5, prompt_tokens_details: {cached_tokens: 3}}});
    return response.end('data: [DONE]\n\n');
  }

  await new Promise(done => server.listen(0, '127.0.0.1', done));
  return {url: `http://127.0.0.1:${server.address().port}/`, requests, close: () => { server.closeAllConnections(); server.close(); }};
}
