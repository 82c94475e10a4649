// The page: a canvas, buttons and a curve around one session of onnx-train-web.
//   ?ort=ADDRESS    the module onnxruntime-web, where the import map has none
//   ?model=ADDRESS  the training model, which `onnx-train build` wrote [train.onnx]
//   ?data=ADDRESS   the folder of digits_train.npz and digits_test.npz [../../models/data/]
//   ?provider=NAME  webgpu, or wasm [wasm]
import { Session } from 'onnx-train-web';
import { digitOf } from './digit.js';
import { readNpz } from './npz.js';

const given = new URLSearchParams(location.search);
const part = (id) => document.getElementById(id);
const BATCH = 32, PIXELS = 64, STEPS_OF_A_DRAWING = 8;
const losses = [], drawings = [];  // of all steps; { image, label } of what was taught
let session, digits, ink;

function say(text) {
  part('status').textContent = text;
}

async function start() {
  const ort = await import(given.get('ort') ? new URL(given.get('ort'), location.href).href : 'onnxruntime-web');
  const options = { ort, executionProviders: [given.get('provider') ?? 'wasm'] };
  session = await Session.create(given.get('model') ?? 'train.onnx', options);
  const folder = new URL(given.get('data') ?? '../../models/data/', location.href);
  const [train, test] = await Promise.all(['digits_train.npz', 'digits_test.npz'].map(async (name) => {
    const answer = await fetch(new URL(name, folder));
    if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
    return readNpz(await answer.arrayBuffer());
  }));
  digits = { train, test };
  for (const id of ['learn', 'train', 'test', 'export', 'checkpoint']) part(id).disabled = false;
  say('Ready. The network knows nothing yet: train it, or teach it digit by digit.');
}

// One step on rows of images; adds its loss to the curve.
async function step(images, labels) {
  const { loss } = await session.step({ image: images, labels }, { lr: Number(part('rate').value) });
  losses.push(loss);
  drawCurve();
  return loss;
}

async function trainOnDigits() {
  const { image, labels } = digits.train;
  const order = shuffled(labels.data.length);
  for (let i = 0; i < order.length; i += BATCH) {
    const rows = order.slice(i, i + BATCH);
    const loss = await step(rowsOf(image.data, rows), rows.map((row) => labels.data[row]));
    say(`Step ${losses.length}: loss ${loss.toFixed(3)}`);
    await new Promise(requestAnimationFrame);
  }
  await test();
}

// Batches of what was drawn, the last one first, and as many digits of the data, so that the network keeps what it knows.
async function learn() {
  const image = digitOf(ink);
  if (!image) return say('Draw a digit first.');
  drawings.push({ image, label: BigInt(part('label').value) });
  const { image: others, labels } = digits.train;
  let loss;
  for (let i = 0; i < STEPS_OF_A_DRAWING; ++i) {
    const rows = shuffled(labels.data.length).slice(0, BATCH / 2);
    const own = rows.map((_, k) => drawings[drawings.length - 1 - (k % drawings.length)]);
    const images = new Float32Array(BATCH * PIXELS);
    images.set(rowsOf(others.data, rows));
    own.forEach((drawing, k) => images.set(drawing.image, (rows.length + k) * PIXELS));
    loss = await step(images, [...rows.map((row) => labels.data[row]), ...own.map(({ label }) => label)]);
    await new Promise(requestAnimationFrame);
  }
  say(`Learned: step ${losses.length}, loss ${loss.toFixed(3)}`);
  await guess();
}

async function test() {
  const { image, labels } = digits.test;
  const { accuracy, loss } = await session.evaluate({ image: image.data, labels: labels.data });
  say(`After ${losses.length} steps: ${(100 * accuracy).toFixed(1)} % of 360 other digits are right, loss ${loss.toFixed(3)}`);
}

async function guess() {
  const image = digitOf(ink);
  part('guess').textContent = '';
  if (!image || !session) return showBars(new Array(10).fill(0));
  const [{ data }] = Object.values(await session.predict({ image }));
  const most = Math.max(...data);
  const weights = [...data].map((logit) => Math.exp(logit - most));
  const sum = weights.reduce((a, b) => a + b);
  showBars(weights.map((weight) => weight / sum));
  part('guess').textContent = `looks like a ${data.indexOf(most)}`;
}

function showBars(probabilities) {
  part('bars').replaceChildren(...probabilities.flatMap((probability, digit) => {
    const name = document.createElement('span'), bar = document.createElement('i');
    name.textContent = digit;
    bar.style.width = `${100 * probability}%`;
    return [name, bar];
  }));
}

function drawCurve() {
  const most = Math.max(...losses, 0.1), left = 34, bottom = 160, width = 358, height = 150;
  const x = (i) => left + (width * i) / Math.max(losses.length - 1, 1), y = (loss) => bottom - (height * loss) / most;
  const lines = [0, most / 2, most].map((loss) =>
    `<line x1="${left}" x2="${left + width}" y1="${y(loss)}" y2="${y(loss)}"/><text x="2" y="${y(loss) + 4}">${loss.toFixed(2)}</text>`);
  const points = losses.map((loss, i) => `${x(i).toFixed(1)},${y(loss).toFixed(1)}`);
  part('curve').innerHTML = `${lines.join('')}<path d="M${points.join('L')}"/><text x="${left}" y="176">step 1</text>` +
    `<text x="${left + width}" y="176" text-anchor="end">${losses.length}</text>`;
}

function rowsOf(images, rows) {
  const found = new Float32Array(rows.length * PIXELS);
  rows.forEach((row, i) => found.set(images.subarray(row * PIXELS, (row + 1) * PIXELS), i * PIXELS));
  return found;
}

function shuffled(size) {
  const order = Array.from({ length: size }, (_, i) => i);
  for (let i = size - 1; i > 0; --i) {
    const other = Math.floor(Math.random() * (i + 1));
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}

function save(bytes, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// The drawing is kept on a canvas without background, from which digits are made, and shown on the visible one.
function prepareDrawing() {
  const shown = part('drawing');
  ink = new OffscreenCanvas(shown.width, shown.height);
  const contexts = [ink.getContext('2d', { willReadFrequently: true }), shown.getContext('2d')];
  contexts[1].strokeStyle = getComputedStyle(document.documentElement).getPropertyValue('--ink');
  for (const context of contexts) Object.assign(context, { lineWidth: 26, lineCap: 'round', lineJoin: 'round' });
  let last = null;
  const draw = ({ offsetX: x, offsetY: y }) => {
    for (const context of contexts) {
      context.beginPath();
      context.moveTo(...(last ?? [x, y]));
      context.lineTo(x, y);
      context.stroke();
    }
    last = [x, y];
  };
  shown.addEventListener('pointerdown', (event) => {
    shown.setPointerCapture(event.pointerId);
    draw(event);
  });
  shown.addEventListener('pointermove', (event) => {
    if (last) draw(event);
  });
  shown.addEventListener('pointerup', () => {
    last = null;
    act(guess)();
  });
  part('clear').addEventListener('click', () => {
    for (const context of contexts) context.clearRect(0, 0, shown.width, shown.height);
    act(guess)();
  });
}

// What a button does: one thing at a time, and what goes wrong is said.
let last = Promise.resolve();
const act = (work) => () => {
  last = last.then(work).catch((error) => say(`Error: ${error.message}`));
  return last;
};

part('label').append(...Array.from({ length: 10 }, (_, digit) => new Option(digit, digit)));
prepareDrawing();
showBars(new Array(10).fill(0));
for (const [id, work] of Object.entries({
  train: trainOnDigits,
  learn,
  test,
  export: async () => save(await session.export(), 'digits.onnx'),
  checkpoint: async () => save(await session.checkpoint(), 'train.onnx'),
})) part(id).addEventListener('click', act(work));
act(start)();
