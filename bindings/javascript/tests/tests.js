// Every part of the package once, and what it says of mistakes. Usage: node --expose-gc tests.js [FOLDER]
'use strict';
const assert = require('assert');
const fs = require('fs');
const os = require('os');
const { join } = require('path');
const { spawnSync } = require('child_process');
const { Worker } = require('worker_threads');
const { Dataset, Model, OnnxTrainError, Session, Tensor, version, options, learningRate, split } = require('..');

const ROOT = join(__dirname, '../../..');
const FOLDER = process.argv[2] || fs.mkdtempSync(join(os.tmpdir(), 'onnx-train-'));
const path = (name) => join(ROOT, name);

const floats = (shape, values) => new Tensor(Float32Array.from(values || { length: shape.reduce((a, b) => a * b, 1) }, values ? undefined : () => 0), shape);
const labelled = (...values) => new Tensor(BigInt64Array.from(values.map(BigInt)), [values.length]);
const closed = (what) => ({ name: 'TypeError', message: `the ${what} is closed` });
const digits = async () => (await Model.load(path('models/digits_cnn.onnx'))).build({ loss: 'cross_entropy', optimizer: 'adamw' });
const mlp = async () => (await Model.load(path('tests/fixtures/mlp.onnx'))).build({ loss: 'cross_entropy', optimizer: 'sgd(momentum=0.9)' });

const tests = {
  /** The texts of the library, as the list of all languages has them. */
  async errors() {
    const forward = await Model.load(path('models/digits_cnn.onnx'));
    const training = await digits();
    const session = await Session.create(training);
    const calls = {
      load: () => Model.load('no_such_file.onnx'),
      build: () => forward.build({ loss: 'no_such_loss' }),
      session: () => Session.create(training, { speed: 1 }),
      run: () => session.run('step'),
    };
    const statuses = ['ok', 'usage', 'file', 'unsupported', 'data', 'memory', 'device', 'internal'];
    const lines = fs.readFileSync(path('bindings/errors.txt'), 'utf8').trimEnd().split('\n').filter((line) => !line.startsWith('#'));
    assert.strictEqual(lines.length, 4);
    for (const line of lines) {
      const [call, status, code, message] = line.split('\t');
      await assert.rejects(calls[call], { name: 'OnnxTrainError', message, code, status: statuses[status] });
    }
    assert.throws(() => session.runSync('step'), OnnxTrainError);
    await assert.rejects(Model.load('kein Modell \u00e4\u20ac\u{1F600}.onnx'), /^OnnxTrainError: kein Modell \u00e4\u20ac\u{1F600}\.onnx: /u);
    await assert.rejects(Model.load('a\0b.onnx'), TypeError);
    await assert.rejects(Model.load(null), TypeError);
    await assert.rejects(Session.create({}), TypeError);
    assert.throws(() => new Model(), TypeError);
    assert.throws(() => options('nothing'), RangeError);
  },

  async models() {
    const forward = await Model.load(path('tests/fixtures/mlp.onnx'));
    const training = await mlp();
    await (await Model.fromBytes(await forward.toBytes())).save(join(FOLDER, 'model.onnx'));
    await assert.rejects(Model.fromBytes(new Uint8Array(0)), OnnxTrainError);
    assert.match(training.metadata['onnx_train.loss'], /cross_entropy/);
    assert.deepStrictEqual(training.notes, []);
    const report = await forward.check();
    assert.match(report.text, /It can be trained/);
    assert.deepStrictEqual([report.failure, report.loss, report.obstacles], ['', 'cross_entropy', []]);
    assert.match((await forward.check({ loss: 'mse(' })).obstacles[0].what, /column/);
    const rows = floats([2, 4]);
    assert.strictEqual(forward.sizes({ x: rows }), '');
    assert.match((await forward.buildForData({ x: rows, labels: labelled(0, 1) })).note, /cross_entropy/);
    await (await Model.load(path('models/digits_cnn.onnx'))).buildForData(path('models/data/digits_train.npz'));
    const [flat, inference] = [await training.flatten('step'), await training.export()];
    assert((await flat.toBytes()).length > (await inference.toBytes()).length);
    assert((await (await forward.derivative('gradient', { loss: 'cross_entropy' })).toBytes()).length > 0);
    assert((await forward.differentiate()).backward instanceof Model);
    await assert.rejects(training.saveAdapter(join(FOLDER, 'adapter')), OnnxTrainError);
    const changed = await forward.withWeights({ 'fc2.bias': new Tensor(new Float64Array([1, 1, 1])) });
    const trained = await changed.build({ loss: 'cross_entropy', optimizer: 'sgd' });
    const served = join(FOLDER, 'served.onnx');
    assert.match(await trained.exportInto(served, { into: path('tests/fixtures/mlp.onnx') }), /trained weights in/);
    assert(fs.existsSync(served));
    await assert.rejects(trained.exportInto(served), { status: 'usage' });
    await assert.rejects(forward.withWeights({ fc9: new Tensor(new Float64Array(1)) }), OnnxTrainError);
    await forward.withWeights({ fc9: new Tensor(new Float64Array(1)) }, false);
    await assert.rejects(forward.buildWithLoss(forward), OnnxTrainError);
    training.close();
    training.close();
    await assert.rejects(training.toBytes(), closed('model'));
    await assert.rejects(Session.create(training), closed('model'));
    await assert.rejects(forward.derivative('gradient', {}, training), closed('model'));
    assert.strictEqual(learningRate(0, { lr: 0.5, schedule: 'linear', steps: 4, warmup: 2 }), 0.25);
    const rowsOf = split(10, { valSplit: 0.2, seed: 1 });
    assert.deepStrictEqual([rowsOf.training.length, rowsOf.evaluation.length], [8, 2]);
    assert.match(options('fit'), /epochs\t/);
  },

  async runs() {
    const training = await mlp();
    const session = await Session.create(training, { threads: 1 });
    const other = await Session.create(training);
    assert.deepStrictEqual([session.entries[0], session.rank, session.ranks], ['predict', 0, 1]);
    assert.deepStrictEqual(session.inputPorts('step')[0], { name: 'x', role: '', of: '', type: 'float32', shape: [-1, 4], hasDefault: false });
    assert.deepStrictEqual(session.device, { type: 1, id: 0, stream: 0n });
    assert.deepStrictEqual([session.scale('x'), session.sampleAxis('step', 'x')], [1, 0]);
    const plan = session.plan('step', { batch: 2 });
    assert(plan.arenaBytes > 0 && plan.text.includes('kernel') && JSON.parse(plan.json)[0].kernel);
    const inputs = { x: floats([2, 4], [1, 0, 0, 0, 0, 1, 0, 0]), labels: labelled(0, 1), learning_rate: 0.1 };
    const losses = [];
    for (let step = 0; step < 20; ++step) losses.push((step % 2 ? session.runSync('step', inputs) : await session.run('step', inputs)).scalar('loss'));
    assert(losses[19] < losses[0] / 2, losses);
    const outputs = session.runSync('predict', { x: inputs.x });
    assert.deepStrictEqual([...outputs].map(({ shape }) => shape[0]), [2]);
    assert.throws(() => outputs.get('nothing'), RangeError);
    for (const name of session.states) other.set(name, session.get(name));
    assert.deepStrictEqual(other.get('fc1.weight').data, session.get('fc1.weight').data);
    await session.initialize(1);
    session.swap('fc1.weight', other);
    assert.strictEqual(session.statePorts.length, session.states.length);
    assert.throws(() => session.setAdapter('none'), OnnxTrainError);
    await assert.rejects(session.loadAdapter('none', 'no/folder'), OnnxTrainError);
    await assert.rejects(session.run('step', { ...inputs, x: new Tensor(new Int32Array(8), [2, 4]) }), { status: 'data' });
    await assert.rejects(session.run('step', { ...inputs, x: 'text' }), TypeError);
    assert.throws(() => session.set('fc1.bias', inputs.labels), TypeError);
    assert.throws(() => new Tensor(new Float32Array(1), [3]), TypeError);
    assert.throws(() => new Tensor(new Float32Array(1), [1], 'bool'), TypeError);
    assert.throws(() => new Tensor([1, 2]), TypeError);
    const wrong = floats([2, 4]);
    wrong.shape[0] = 1000;  // which the addon sees
    await assert.rejects(session.run('predict', { x: wrong }), /8 elements/);
    wrong.shape = ['a', 'b'];
    await assert.rejects(session.run('predict', { x: wrong }), { name: 'TypeError', message: 'A number was expected' });
    await assert.rejects(session.generate([['a']]), TypeError);
    const pending = session.run('step', inputs);
    assert.throws(() => session.runSync('step', inputs), { status: 'usage', message: /works/ });
    await assert.rejects(session.run('step', inputs), /works/);
    await pending;
  },

  /** The types for TypeScript have the members that there are. */
  async types() {
    const text = fs.readFileSync(join(__dirname, '../index.d.ts'), 'utf8');
    for (const type of [Model, Session, Dataset]) {
      const [, body] = text.match(new RegExp(`^export class ${type.name} .*?\\{\\n(.*?)^\\}`, 'ms'));
      const declared = [...body.matchAll(/^  (?:static |readonly )*(\w+)[(:]/gm)].map(([, name]) => name).sort();
      const own = (object) => Object.getOwnPropertyNames(object).filter((name) => !['constructor', 'length', 'name', 'prototype'].includes(name));
      const has = [...new Set([...own(type), ...own(type.prototype), 'close'])].sort();
      assert.deepStrictEqual(declared, has);
    }
  },

  /** Memory is shared without copies, and is there as long as the documentation says. */
  async buffers() {
    const session = await Session.create(await mlp());
    const bias = session.data('fc1.bias').data;
    const [before] = bias;
    const x = new Float32Array(8);
    const rows = new Tensor(x, [2, 4]);
    x[0] = x[5] = 1;  // the tensor sees it
    for (let i = 0; i < 5; ++i) await session.run('step', { x: rows, labels: labelled(0, 1), learning_rate: 1 });
    assert.notStrictEqual(bias[0], before);
    bias[0] = 42;
    assert.strictEqual(session.get('fc1.bias').data[0], 42);
    assert.strictEqual(session.data('fc1.bias').data, bias);
    const [stale] = await session.run('predict', { x: rows });
    assert.strictEqual(stale.data.length, 6);
    const last = session.runSync('predict', { x: rows });
    assert.strictEqual(stale.data.length, 0);
    await assert.rejects(session.run('predict', { x: stale }), TypeError);
    const pending = session.run('predict', { x: rows });
    session.close();  // is freed after the call
    assert.strictEqual(bias.length > 0, true);
    assert.throws(() => session.states, closed('session'));  // not that it works
    await assert.rejects(session.run('predict', { x: rows }), closed('session'));
    await assert.rejects(pending, closed('session'));  // its outputs are gone
    assert.deepStrictEqual([bias.length, last.get('logits').data.length], [0, 0]);
    session.close();
    assert.throws(() => session.runSync('predict', { x: rows }), closed('session'));
  },

  /** The event loop goes on while a worker's thread trains. */
  async training() {
    const session = await Session.create(await mlp());
    const x = new Float32Array(64 * 4);
    const classes = Array.from({ length: 64 }, (_, i) => i % 3);
    classes.forEach((label, i) => (x[4 * i + label] = 1));
    const arrays = { x: new Tensor(x, [64, 4]), labels: labelled(...classes) };
    const told = [];
    let turns = 0;
    const timer = setInterval(() => (turns += 1), 1);
    const reason = await session.fit(arrays, { epochs: 100, batchSize: 16, lr: 0.1, out: join(FOLDER, 'run'), overwrite: true }, {
      evaluation: arrays,
      onStep: async ({ step }) => {
        await new Promise((resolve) => setTimeout(resolve, 1));  // a callback may wait
        return step < 30 ? undefined : 'stop';
      },
      onEvaluation: ({ epoch, metrics }) => void told.push(`evaluation ${epoch} ${metrics.loss > 0}`),
      onCheckpoint: () => void told.push('checkpoint'),
    });
    clearInterval(timer);
    assert.strictEqual(reason, 'stopped');
    assert(told.includes('evaluation 1 true') && told.includes('checkpoint'), told);
    assert(turns > 5, `${turns} turns of the event loop`);
    assert.strictEqual((await session.evaluate(arrays)).accuracy, 1);
    assert.deepStrictEqual([session.metrics({}), [...session.metricTables()].length >= 0], [{}, true]);
    assert.strictEqual((await session.predict(arrays)).get('logits').shape[0], 64);
  },

  /** What callbacks throw arrives as it was thrown. */
  async callbacks() {
    const session = await Session.create(await mlp());
    const mine = new Error('mine');
    const batches = (failure) => {
      let left = 0;
      return {
        batches: 3,
        begin: () => void (left = 3),
        async next() {
          if (left-- === 0) return undefined;
          if (failure && left === 0) throw failure;
          return { x: floats([2 + left, 4]), labels: labelled(...Array(2 + left).fill(0)) };
        },
      };
    };
    const samples = [];
    const onStep = (step) => {
      samples.push(step.samples);
      assert.deepStrictEqual([step.tokens, step.utilization], [0, NaN]);
      if (global.gc) global.gc();  // batches stay as long as the library reads them
    };
    assert.strictEqual(await session.fit(batches(), { epochs: 2 }, { onStep }), 'finished');
    assert.deepStrictEqual(samples, [4, 3, 2, 4, 3, 2]);
    const same = (error) => error === mine;
    await assert.rejects(session.fit(batches(mine), { epochs: 2 }), same);
    await assert.rejects(session.fit(batches(), { epochs: 2 }, { evaluation: batches(mine) }), same);
    const throws = () => { throw mine; };
    await assert.rejects(session.fit(batches(), { epochs: 2 }, { onStep: throws }), same);
    await assert.rejects(session.fit(batches(), { epochs: 2 }, { onStep: async () => throws() }), same);
    await assert.rejects(session.fit(batches(), { epochs: 2 }, { onStep: () => 'halt' }), /'stop'/);
    const rows = { x: floats([2, 4]), labels: labelled(0, 1) };
    let bytes;
    await session.fit(batches(), { epochs: 1 }, {
      onStep: () => void session.runSync('predict', { x: rows.x }),  // a callback uses the session
      onEvaluation: async () => void (bytes = await (await session.model()).toBytes()),
    });
    assert(bytes.length > 0);
    await assert.rejects(session.fit(batches(), { epochs: 2 }, { onStep: () => void session.run('predict', { x: rows.x }).catch(() => {}) }), /works/);
    const during = session.fit(batches(), { epochs: 2 });
    await assert.rejects(session.run('predict', { x: rows.x }), /works/);
    await during;
    await assert.rejects(session.fit({ next: () => ({ x: 'text' }) }, { epochs: 2 }), TypeError);
    await assert.rejects(session.fit(batches(), { epoch: 2 }), OnnxTrainError);
    assert.strictEqual(await session.fit(batches(), { epochs: 2 }, { onStep: () => session.close() }), 'finished');
    assert.throws(() => session.states, closed('session'));  // freed after the call
  },

  async data() {
    const file = join(FOLDER, 'weights.safetensors');
    await Dataset.saveSafetensors(file, { a: new Tensor(new Float32Array([1, 2])) }, { note: 'f\u00fcr' });
    const weights = await Dataset.openSafetensors(file);
    assert.strictEqual(weights.metadata.note, 'f\u00fcr');
    assert.deepStrictEqual(weights.tensors().map(({ name, data }) => [name, ...data]), [['a', 1, 2]]);
    weights.close();
    assert.throws(() => weights.tensors(), closed('dataset'));
    const session = await Session.create(await digits());
    await assert.rejects(session.fit(weights, { epochs: 1 }), closed('dataset'));
    const dataset = await Dataset.open(path('models/data/digits_test.npz'), session);
    assert.deepStrictEqual([dataset.samples, dataset.batchesOf(100)], [360, 4]);
    await assert.rejects(Dataset.open('no.npz'), { code: 'OT4001' });
  },

  /** Where the addon's build looks for the library and its header. */
  async library() {
    const file = (...parts) => {
      const name = join(FOLDER, 'library', ...parts);
      fs.mkdirSync(join(name, '..'), { recursive: true });
      fs.writeFileSync(name, '');
    };
    const find = (what, env) => {
      const { stdout, stderr } = spawnSync(process.execPath, [script, what], { encoding: 'utf8', env: { PATH: process.env.PATH, ...env } });
      return stdout.trim() || stderr.trim();
    };
    const folder = (...parts) => fs.realpathSync(join(FOLDER, 'library', ...parts));
    file('bindings/javascript/find_library.js');  // a checkout of its own, which is not built
    const script = join(FOLDER, 'library/bindings/javascript/find_library.js');
    fs.copyFileSync(join(__dirname, '../find_library.js'), script);
    const none = { PKG_CONFIG_LIBDIR: '/nowhere' };
    assert.match(find('lib', none), /^onnx-train: libonnx_train.so is not in .*library\/build: set ONNX_TRAIN_LIB_DIR to its folder, or install it for pkg-config$/);
    assert.match(find('include', none), /^onnx-train: onnx_train\/onnx_train.h is not in .*: set ONNX_TRAIN_INCLUDE_DIR/);
    file('build/libonnx_train.so');
    file('include/onnx_train/onnx_train.h');
    assert.deepStrictEqual([find('lib', none), find('include', none)], [folder('build'), folder('include')]);
    file('usr/lib/libonnx_train.so');
    file('usr/include/onnx_train/onnx_train.h');
    fs.writeFileSync(join(FOLDER, 'library/usr/lib/onnx_train.pc'), `libdir=${folder('usr/lib')}\nName: a\nDescription: b\nVersion: 1\n`);
    const installed = { PKG_CONFIG_LIBDIR: folder('usr/lib') };
    if (spawnSync('pkg-config', ['--version']).status === 0) {
      assert.deepStrictEqual([find('lib', installed), find('include', installed)], [folder('usr/lib'), folder('usr/include')]);
    } else {
      console.log('pkg-config is not installed: what it finds is skipped');
    }
    const given = { ...installed, ONNX_TRAIN_LIB_DIR: folder('build') };
    assert.deepStrictEqual([find('lib', given), find('include', given)], [folder('build'), folder('include')]);
    assert.strictEqual(find('include', { ...given, ONNX_TRAIN_INCLUDE_DIR: folder('usr/include') }), folder('usr/include'));
    assert.match(find('lib', { ONNX_TRAIN_LIB_DIR: '/nowhere' }), /is not in \/nowhere: set/);
  },

  async texts() {
    const session = await Session.create(await Model.load(path('models/gpt.onnx')));
    const texts = await session.generate([[1, 2, 3], [4]], { tokens: 4, seed: 1 });
    assert.deepStrictEqual([texts.length, texts[0].length, session.generateNote], [2, 4, '']);
    const ended = await session.generate([[1, 2, 3]], { tokens: 4, seed: 1 }, () => false);
    assert.deepStrictEqual(ended, [[texts[0][0]]]);
    const one = await session.generate([[1, 2, 3], [4]], { tokens: 4, seed: 1 }, (text) => (text === 0 ? 'end-text' : undefined));
    assert.deepStrictEqual(one.map(({ length }) => length), [1, 4]);
    await assert.rejects(session.generate([[1]], {}, () => { throw new RangeError('mine'); }), RangeError);
    const gpt = await Model.load(path('models/gpt.onnx'));
    const learning = await Session.create(await gpt.build({ loss: 'cross_entropy', optimizer: 'sgd' }));
    const rows = (from) => new Tensor(BigInt64Array.from({ length: 128 }, (_, i) => BigInt((i + from) % 128)), [1, 128]);
    const steps = [];
    await learning.fit({ tokens: rows(0), labels: rows(1) }, { steps: 1 }, { onStep: (step) => void steps.push(step.tokens) });
    assert.deepStrictEqual(steps, [128]);
  },

  /** A process, or a thread of worker_threads, that ends while a worker trains ends at the next step. */
  async exit() {
    const program = (begin) => `const { Model, Session, Tensor } = require(${JSON.stringify(join(__dirname, '..'))});
      (async () => {
        const model = await (await Model.load(${JSON.stringify(path('tests/fixtures/mlp.onnx'))})).build({ loss: 'cross_entropy' });
        const session = await Session.create(model);
        const data = { x: new Tensor(new Float32Array(4), [1, 4]), labels: new Tensor(new BigInt64Array(1)) };
        ${begin};
        await session.fit(data, { epochs: 1e9 }, process.argv.includes('waits') ? { onStep: () => new Promise(() => {}) } : {});
      })();`;
    for (const argv of [[], ['waits']]) {
      const { status, stderr } = spawnSync(process.execPath, ['-e', program('setTimeout(() => process.exit(7), 100)'), ...argv], { timeout: 60000 });
      assert.strictEqual(status, 7, String(stderr));
      const worker = new Worker(program("require('worker_threads').parentPort.postMessage('trains')"), { eval: true, argv });
      await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
      await new Promise((resolve) => setTimeout(resolve, 100));
      await worker.terminate();
    }
  },

  /** 1,000 sessions leak nothing: the resident memory of the process stays. */
  async sessions() {
    if (!global.gc) return console.log('1,000 sessions: start node with --expose-gc');
    const training = await mlp();
    const inputs = { x: floats([2, 4]), labels: labelled(0, 1) };
    const resident = async () => {
      for (let i = 0; i < 5; ++i) {
        global.gc();
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return process.memoryUsage().rss;
    };
    let before = 0;
    for (let i = 0; i < 1400; ++i) {
      if (i === 400) before = await resident();
      const session = await Session.create(training, { threads: 1 });
      session.runSync('step', inputs).scalar('loss');
      session.data('fc1.bias').data[0] = 1;
      (await session.model()).close();
      if (i % 2) session.close();  // the garbage collector frees the others
      if (i % 20 === 0) global.gc();
      await assert.rejects(Session.create(training, { speed: 1 }), OnnxTrainError);
    }
    const grown = (await resident()) - before;
    console.log(`1,000 sessions: ${Math.round(grown / 1024)} KiB more`);
    assert(grown < 8 << 20, grown);
    return undefined;
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
    } catch (error) {
      console.error(`${name} failed`);
      throw error;
    }
  }
  console.log(`javascript: all passed, onnx-train ${version}`);
})();
