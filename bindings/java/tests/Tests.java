import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import onnxtrain.DataSource;
import onnxtrain.Dataset;
import onnxtrain.ElementType;
import onnxtrain.Model;
import onnxtrain.Next;
import onnxtrain.Observer;
import onnxtrain.OnnxTrain;
import onnxtrain.OnnxTrainException;
import onnxtrain.Options;
import onnxtrain.Outputs;
import onnxtrain.Plan;
import onnxtrain.Port;
import onnxtrain.Report;
import onnxtrain.Session;
import onnxtrain.Status;
import onnxtrain.StopReason;
import onnxtrain.Tensor;

/** Every part of the package once, and what it says of mistakes. Usage: Tests ROOT FOLDER; without them it says the version. */
public final class Tests {
  private static Path root;
  private static Path folder;

  public static void main(String[] arguments) throws Exception {
    if (arguments.length == 0) {
      System.out.println("version " + OnnxTrain.version());
      return;
    }
    root = Paths.get(arguments[0]);
    folder = Paths.get(arguments[1]);
    errors();
    models();
    runs();
    buffers();
    training();
    callbacks();
    threads();
    data();
    texts();
    sessions();
    System.out.println("java: all passed, onnx-train " + OnnxTrain.version());
  }

  private static String path(String name) {
    return root.resolve(name).toString();
  }

  private static void expect(boolean condition, Object said) {
    if (!condition) throw new AssertionError(String.valueOf(said));
  }

  private interface Call {
    void run() throws Exception;
  }

  private static <T extends Throwable> T thrown(Class<T> type, Call call) {
    try {
      call.run();
    } catch (Throwable error) {
      if (type.isInstance(error)) return type.cast(error);
      throw new AssertionError("threw " + error, error);
    }
    throw new AssertionError("threw no " + type.getSimpleName());
  }

  private static Model digits() {
    try (Model forward = Model.load(path("models/digits_cnn.onnx"))) {
      return forward.build("loss", "cross_entropy", "optimizer", "adamw");
    }
  }

  private static Model mlp() {
    try (Model forward = Model.load(path("tests/fixtures/mlp.onnx"))) {
      return forward.build("loss", "cross_entropy", "optimizer", "sgd(momentum=0.9)");
    }
  }

  /** The texts of the library, as the list of all languages has them. */
  private static void errors() throws IOException {
    try (Model forward = Model.load(path("models/digits_cnn.onnx")); Model training = digits();
        Session session = new Session(training)) {
      int lines = 0;
      for (String line : Files.readAllLines(root.resolve("bindings/errors.txt"))) {
        if (line.startsWith("#")) continue;
        final String[] parts = line.split("\t");
        final OnnxTrainException error = thrown(OnnxTrainException.class, () -> {
          switch (parts[0]) {
            case "load": Model.load("no_such_file.onnx"); break;
            case "build": forward.build("loss", "no_such_loss"); break;
            case "session": new Session(training, "speed", "1"); break;
            case "run": session.run("step"); break;
            default: throw new AssertionError("no call " + parts[0]);
          }
        });
        expect(error.getMessage().equals(parts[3]), error.getMessage());
        expect(error.code().equals(parts[2]) && error.status().ordinal() == Integer.parseInt(parts[1]), error.code());
        ++lines;
      }
      expect(lines == 4, lines);
    }
    final OnnxTrainException error = thrown(OnnxTrainException.class, () -> Model.load("kein Modell \u00e4\u20ac\ud83d\ude00.onnx"));
    expect(error.getMessage().startsWith("kein Modell \u00e4\u20ac\ud83d\ude00.onnx: "), error.getMessage());
    expect(error.status() == Status.FILE, error.status());
    thrown(IllegalArgumentException.class, () -> Model.load("a\0b.onnx"));
    thrown(NullPointerException.class, () -> Model.load(null));
    thrown(IllegalArgumentException.class, () -> digits().build("loss"));
    thrown(IllegalArgumentException.class, () -> OnnxTrain.options("nothing"));
  }

  private static void models() throws IOException {
    final String saved = folder.resolve("model.onnx").toString();
    try (Model forward = Model.load(path("tests/fixtures/mlp.onnx")); Model training = mlp()) {
      try (Model copy = Model.fromBytes(forward.toBytes())) {
        copy.save(saved);
      }
      thrown(OnnxTrainException.class, () -> Model.fromBytes("no model".getBytes(StandardCharsets.UTF_8)));
      expect(training.metadata().get("onnx_train.loss").contains("cross_entropy"), training.metadata());
      expect(training.notes().isEmpty(), training.notes());
      final Report report = forward.check();
      expect(report.text.contains("It can be trained") && report.failure.isEmpty() && report.obstacles.isEmpty(), report.text);
      final Report obstacle = forward.check("loss", "mse(");
      expect(obstacle.obstacles.size() == 1 && obstacle.obstacles.get(0).what.contains("column"), obstacle.text);
      final Tensor rows = Tensor.of("x", new long[] {2, 4}, new float[8]);
      final Tensor labels = Tensor.of("labels", new long[] {2}, 0L, 1L);
      expect(forward.sizes(rows).isEmpty(), forward.sizes(rows));
      final Model.Built built = forward.buildForData(new Tensor[] {rows, labels});
      expect(built.note.contains("cross_entropy"), built.note);
      built.model.close();
      try (Model network = Model.load(path("models/digits_cnn.onnx"))) {
        network.buildForData(path("models/data/digits_train.npz")).model.close();
      }
      try (Model flat = training.flatten("step"); Model inference = training.export();
          Model derivative = forward.derivative("gradient", "loss", "cross_entropy")) {
        expect(flat.toBytes().length > inference.toBytes().length, "flat");
        expect(derivative.toBytes().length > 0, "derivative");
      }
      for (Model pass : forward.differentiate()) pass.close();
      final OnnxTrainException none = thrown(OnnxTrainException.class, () -> training.saveAdapter(folder + "/adapter"));
      expect(none.getMessage().length() > 0, none);
      final Tensor ones = Tensor.of("fc2.bias", new long[] {3}, 1.0, 1.0, 1.0);
      try (Model changed = forward.withWeights(true, ones);
          Model trained = changed.build("loss", "cross_entropy", "optimizer", "sgd")) {
        final Path served = folder.resolve("served.onnx");
        final String written = trained.exportInto(served.toString(), "into", path("tests/fixtures/mlp.onnx"));
        expect(written.contains("trained weights in") && Files.exists(served), written);
        expect(thrown(OnnxTrainException.class, () -> trained.exportInto(served.toString())).status() == Status.USAGE, "into");
      }
      thrown(OnnxTrainException.class, () -> forward.withWeights(true, Tensor.of("fc9", new long[] {1}, 1.0)));
      forward.withWeights(false, Tensor.of("fc9", new long[] {1}, 1.0)).close();
      thrown(OnnxTrainException.class, () -> forward.buildWithLoss(forward));
    }
    final Model closed = mlp();
    closed.close();
    closed.close();
    expect(thrown(IllegalStateException.class, closed::toBytes).getMessage().equals("the model is closed"), "model");
    expect(OnnxTrain.learningRate(0, "lr", "0.5", "schedule", "linear", "steps", "4", "warmup", "2") == 0.25, "rate");
    final long[][] rows = OnnxTrain.split(10, "val-split", "0.2", "seed", "1");
    expect(rows[0].length == 8 && rows[1].length == 2, "split");
    expect(OnnxTrain.options("fit").contains("epochs\t"), "options");
  }

  private static void runs() {
    try (Model training = mlp(); Session session = new Session(training, "threads", "1");
        Session other = new Session(training)) {
      expect(session.entries()[0].equals("predict") && session.ranks() == 1 && session.rank() == 0, "entries");
      final Port x = session.inputPorts("step")[0];
      expect(x.name.equals("x") && x.type == ElementType.FLOAT && x.shape[0] == -1 && x.shape[1] == 4 && !x.hasDefault, x);
      expect(session.device().type == 1 && session.device().stream == 0, "device");
      expect(session.scale("x") == 1 && session.sampleAxis("step", "x") == 0, "axis");
      final Plan plan = session.plan("step", "batch", "2");
      expect(plan.arenaBytes > 0 && plan.text.contains("kernel") && plan.json.contains("\"kernel\""), plan.text);
      final Tensor rows = Tensor.of("x", new long[] {2, 4}, 1, 0, 0, 0, 0, 1, 0, 0f);
      final Tensor labels = Tensor.of("labels", new long[] {2}, 0L, 1L);
      float first = 0;
      float last = 0;
      for (int step = 0; step < 20; ++step) {
        last = session.run("step", rows, labels, Tensor.scalar("learning_rate", 0.1f)).scalar("loss");
        if (step == 0) first = last;
      }
      expect(last < first / 2, last);
      final ByteBuffer odd = (ByteBuffer) ByteBuffer.allocateDirect(33).order(ByteOrder.nativeOrder()).position(1);
      odd.slice().order(ByteOrder.nativeOrder()).asFloatBuffer().put(rows.floats());
      final float[] same = session.run("predict", Tensor.of("x", ElementType.FLOAT, new long[] {2, 4}, odd)).get("logits").toFloats();
      final Outputs outputs = session.run("predict", rows);
      expect(java.util.Arrays.equals(same, outputs.get("logits").toFloats()), "memory at any address");
      expect(outputs.size() == 1 && outputs.iterator().next().shape()[0] == 2, outputs.size());
      thrown(IllegalArgumentException.class, () -> outputs.get("nothing"));
      for (String name : session.states()) other.set(name, session.get(name));
      expect(other.get("fc1.weight").buffer().equals(session.get("fc1.weight").buffer()), "set");
      session.initialize(1);
      session.swap("fc1.weight", other);
      expect(session.statePorts().length == session.states().length, "ports");
      thrown(OnnxTrainException.class, () -> session.setAdapter("none"));
      thrown(OnnxTrainException.class, () -> session.loadAdapter("none", "no/folder"));
      final OnnxTrainException type = thrown(OnnxTrainException.class,
          () -> session.run("step", Tensor.of("x", new long[] {2, 4}, new int[8]), labels));
      expect(type.status() == Status.DATA && type.getMessage().contains("'x'"), type);
      thrown(IllegalArgumentException.class, () -> session.set("fc1.bias", labels));
    }
    thrown(IllegalArgumentException.class, () -> Tensor.of("x", new long[] {3}, 1f));
    thrown(IllegalArgumentException.class, () -> Tensor.of("x", ElementType.FLOAT, new long[] {1}, ByteBuffer.allocate(4)));
    thrown(IllegalArgumentException.class, () -> Tensor.of("x", ElementType.FLOAT, new long[] {2}, ByteBuffer.allocateDirect(4)));
    final ByteBuffer foreign = ByteBuffer.allocateDirect(4);  // BIG_ENDIAN, as Java makes them
    if (ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN) foreign.order(ByteOrder.LITTLE_ENDIAN);
    foreign.asFloatBuffer().put(1);
    final String order = thrown(IllegalArgumentException.class,
        () -> Tensor.of("x", ElementType.FLOAT, new long[] {1}, foreign)).getMessage();
    expect(order.equals("the buffer of 'x' is " + foreign.order() + ", and the machine " + ByteOrder.nativeOrder()
        + ": set order(ByteOrder.nativeOrder()) before elements are put into it"), order);
    Tensor.of("x", ElementType.UINT8, new long[] {4}, foreign);  // bytes have no order
    for (long[] shape : new long[][] {{1L << 62, 1L << 62}, {1L << 62}}) {  // of the second one, only the bytes overflow
      final String large = thrown(IllegalArgumentException.class,
          () -> Tensor.of("x", ElementType.FLOAT, shape, ByteBuffer.allocateDirect(0).order(ByteOrder.nativeOrder()))).getMessage();
      expect(large.startsWith("the shape [4611686018427387904") && large.endsWith("of 'x' has more elements than a memory holds"), large);
    }
  }

  /** Memory is shared without copies, and is there as long as the documentation says. */
  private static void buffers() throws Exception {
    final FloatBuffer kept;
    try (Model training = mlp()) {
      final Session session = new Session(training);
      final FloatBuffer bias = session.buffer("fc1.bias").asFloatBuffer();
      final float before = bias.get(0);
      final ByteBuffer memory = ByteBuffer.allocateDirect(4 * 2 * 4).order(ByteOrder.nativeOrder());
      final Tensor rows = Tensor.of("x", ElementType.FLOAT, new long[] {2, 4}, memory);
      memory.putFloat(0, 1).putFloat(20, 1);  // the tensor sees it
      final Tensor labels = Tensor.of("labels", new long[] {2}, 0L, 1L);
      for (int i = 0; i < 5; ++i) session.run("step", rows, labels, Tensor.scalar("learning_rate", 1));
      expect(bias.get(0) != before, "the buffer does not see the step");
      bias.put(0, 42);
      expect(session.get("fc1.bias").floats().get(0) == 42, "the session does not see the buffer");
      final Outputs outputs = session.run("predict", rows);
      final Tensor stale = outputs.iterator().next();
      expect(stale.floats().remaining() == 6, "outputs");
      session.run("predict", rows);
      thrown(IllegalStateException.class, stale::floats);
      final Tensor last = session.run("predict", rows).iterator().next();
      session.close();
      session.close();
      for (Call call : new Call[] {last::buffer, session::states, () -> session.run("predict", rows)}) {
        final String said = thrown(IllegalStateException.class, call).getMessage();
        expect(said.equals("the session is closed"), said);
      }
      kept = bias;
    }
    for (int i = 0; i < 3; ++i) {
      System.gc();
      Thread.sleep(10);
    }
    expect(kept.get(0) == 42, "the memory of a kept buffer is gone");
  }

  private static void training() {
    final String out = folder.resolve("run").toString();
    try (Model training = mlp(); Session session = new Session(training)) {
      final float[] x = new float[64 * 4];
      final long[] labels = new long[64];
      for (int i = 0; i < 64; ++i) {
        x[4 * i + i % 3] = 1;
        labels[i] = i % 3;
      }
      final DataSource arrays = DataSource.of(Tensor.of("x", new long[] {64, 4}, x), Tensor.of("labels", new long[] {64}, labels));
      final List<String> told = new ArrayList<>();
      final StopReason reason = session.fit(arrays, arrays, new Observer()
          .onStep(step -> step.step < 30 ? Next.CONTINUE : Next.STOP)
          .onEvaluation(evaluation -> {
            told.add("evaluation " + evaluation.epoch + " " + (evaluation.metrics.get("loss") > 0));
            expect(session.model().toBytes().length > 0, "a callback uses the session");
            return Next.CONTINUE;
          })
          .onCheckpoint(file -> {
            told.add("checkpoint");
            return Next.CONTINUE;
          }), "epochs", "100", "batch-size", "16", "lr", "0.1", "out", out, "overwrite", "true");
      expect(reason == StopReason.STOPPED && told.contains("evaluation 1 true") && told.contains("checkpoint"), told);
      final Map<String, Double> metrics = session.evaluate(arrays);
      expect(metrics.get("accuracy") == 1.0, metrics);
      expect(session.metricTables().size() >= 0, "tables");
      expect(session.metrics().isEmpty(), "statistics");
      expect(session.predict(arrays).get("logits").shape()[0] == 64, "predict");
    }
  }

  private static final class Batches extends DataSource {
    private int left;
    private final RuntimeException failure;

    Batches(RuntimeException failure) {
      this.failure = failure;
    }

    @Override
    public void begin(long epoch) {
      left = 3;
    }

    @Override
    public Tensor[] next() {
      if (left-- == 0) return new Tensor[0];
      if (failure != null && left == 0) throw failure;
      final int rows = 2 + left;
      return new Tensor[] {Tensor.of("x", new long[] {rows, 4}, new float[4 * rows]), Tensor.of("labels", new long[] {rows}, new long[rows])};
    }

    @Override
    public long batches() {
      return 3;
    }
  }

  /** Exceptions of callbacks arrive as they were thrown, and leave the session as it was. */
  private static void callbacks() {
    try (Model training = mlp(); Session session = new Session(training)) {
      final List<Long> samples = new ArrayList<>();
      expect(session.fit(new Batches(null), null, new Observer().onStep(step -> {
        samples.add(step.samples);
        expect(step.tokens == 0 && Double.isNaN(step.utilization), step.utilization);
        System.gc();  // batches stay as long as the library reads them
        return Next.CONTINUE;
      }), "epochs", "2") == StopReason.FINISHED, "batches");
      expect(samples.toString().equals("[4, 3, 2, 4, 3, 2]"), samples);
      final RuntimeException mine = new RuntimeException("mine");
      expect(thrown(RuntimeException.class, () -> session.fit(new Batches(mine), "epochs", "2")) == mine, "of data");
      expect(thrown(RuntimeException.class, () -> session.fit(new Batches(null), null, new Observer().onStep(step -> {
        throw mine;
      }), "epochs", "2")) == mine, "of an observer");
      thrown(NullPointerException.class, () -> session.fit(new Batches(null), null, new Observer().onStep(step -> null), "epochs", "1"));
      thrown(NullPointerException.class, () -> session.fit(new DataSource() {
        @Override
        public Tensor[] next() {
          return null;
        }
      }, "epochs", "1"));
      final List<String> notes = new ArrayList<>();
      expect(session.evaluate(new Batches(null), new Observer().onNote(notes::add)).containsKey("loss"), notes);
      thrown(IllegalStateException.class, () -> session.fit(new Batches(null), null, new Observer().onStep(step -> {
        session.close();  // is freed after the call
        throw new IllegalStateException();
      }), "epochs", "2"));
    }
  }

  /** A session that works refuses the call of another thread; within a callback it does not work. */
  private static void threads() throws Exception {
    try (Model training = mlp(); Session session = new Session(training)) {
      final DataSource arrays = DataSource.of(Tensor.of("x", new long[] {1, 4}, new float[4]), Tensor.of("labels", new long[] {1}, 0L));
      final List<OnnxTrainException> refused = java.util.Collections.synchronizedList(new ArrayList<>());
      final Thread trains = new Thread(() -> {
        try {
          session.fit(arrays, null, new Observer().onStep(step -> refused.isEmpty() ? Next.CONTINUE : Next.INTERRUPT), "epochs", "100000000");
        } catch (OnnxTrainException error) {
          refused.add(error);
        }
      });
      trains.start();
      while (refused.isEmpty()) {
        try {
          session.scale("x");
        } catch (OnnxTrainException error) {
          refused.add(error);
        }
      }
      trains.join();
      expect(refused.get(0).status() == Status.USAGE && refused.get(0).getMessage().contains("another thread"), refused);
    }
  }

  private static void data() throws IOException {
    final String file = folder.resolve("weights.safetensors").toString();
    Dataset.saveSafetensors(file, new Tensor[] {Tensor.of("a", new long[] {2}, 1f, 2f)}, "note", "f\u00fcr");
    final Tensor kept;
    final FloatBuffer values;
    try (Dataset dataset = Dataset.openSafetensors(file)) {
      expect(dataset.metadata().get("note").equals("f\u00fcr"), dataset.metadata());
      kept = dataset.tensors()[0];
      expect(kept.name().equals("a") && kept.toFloats()[1] == 2 && kept.buffer().isReadOnly(), kept);
      values = kept.floats();
    }
    expect(thrown(IllegalStateException.class, kept::floats).getMessage().equals("the dataset is closed"), "dataset");
    System.gc();
    expect(values.get(1) == 2, "the memory of a kept buffer is gone");
    try (Model training = digits(); Session session = new Session(training);
        Dataset dataset = Dataset.open(path("models/data/digits_test.npz"), session)) {
      expect(dataset.samples() == 360 && dataset.batchesOf(100) == 4, dataset.samples());
    }
    expect(thrown(OnnxTrainException.class, () -> Dataset.open("no.npz")).code().equals("OT4001"), "no.npz");
    expect(Options.of(java.util.Collections.singletonMap("epochs", 3))[1].equals("3"), "options");
  }

  private static void texts() {
    try (Model gpt = Model.load(path("models/gpt.onnx")); Session session = new Session(gpt)) {
      final long[][] texts = session.generate(new long[][] {{1, 2, 3}, {4}}, null, "tokens", "4", "seed", "1");
      expect(texts.length == 2 && texts[0].length == 4 && session.generateNote().isEmpty(), session.generateNote());
      final long[][] ended = session.generate(new long[][] {{1, 2, 3}}, (text, token) -> Next.STOP, "tokens", "4", "seed", "1");
      expect(ended[0].length == 1 && ended[0][0] == texts[0][0], ended[0].length);
      final long[][] one = session.generate(new long[][] {{1, 2, 3}, {4}},
          (text, token) -> text == 0 ? Next.END_TEXT : Next.CONTINUE, "tokens", "4", "seed", "1");
      expect(one[0].length == 1 && one[1].length == 4, one[1].length);
      final RuntimeException mine = new RuntimeException("mine");
      expect(thrown(RuntimeException.class, () -> session.generate(new long[][] {{1}}, (text, token) -> {
        throw mine;
      })) == mine, "of a token");
      try (Model training = gpt.build("loss", "cross_entropy", "optimizer", "sgd"); Session learning = new Session(training)) {
        final long[] shape = {1, 128};
        final long[] text = java.util.stream.LongStream.range(0, 129).map(i -> i % 128).toArray();
        final DataSource arrays = DataSource.of(Tensor.of("tokens", shape, java.util.Arrays.copyOf(text, 128)),
            Tensor.of("labels", shape, java.util.Arrays.copyOfRange(text, 1, 129)));
        final List<Long> tokens = new ArrayList<>();
        learning.fit(arrays, null, new Observer().onStep(step -> {
          tokens.add(step.tokens);
          return Next.CONTINUE;
        }), "steps", "1");
        expect(tokens.toString().equals("[128]"), tokens);
      }
    }
  }

  /** 1,000 sessions leak nothing: the resident memory of the process stays. */
  private static void sessions() throws Exception {
    try (Model training = mlp()) {
      final Tensor rows = Tensor.of("x", new long[] {2, 4}, new float[8]);
      final Tensor labels = Tensor.of("labels", new long[] {2}, 0L, 1L);
      long before = 0;
      for (int i = 0; i < 1200; ++i) {
        if (i == 200) before = resident();
        final Session session = new Session(training, "threads", "1");
        session.run("step", rows, labels).scalar("loss");
        session.buffer("fc1.bias").putFloat(0, 1);
        session.model().close();
        if (i % 2 == 0) session.close();  // the others are freed when the collector finds them
        if (i % 100 == 0) System.gc();
        thrown(OnnxTrainException.class, () -> new Session(training, "speed", "1"));
      }
      final long grown = resident() - before;
      System.out.println("1,000 sessions: " + grown / 1024 + " KiB more");
      expect(grown < 2 << 20, grown);
    }
  }

  private static long resident() throws Exception {
    for (int i = 0; i < 5; ++i) {
      System.gc();
      Thread.sleep(20);
    }
    final String[] pages = new String(Files.readAllBytes(Paths.get("/proc/self/statm")), StandardCharsets.US_ASCII).split(" ");
    return Long.parseLong(pages[1]) * 4096;
  }
}
