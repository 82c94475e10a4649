package onnxtrain;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.LongFunction;

/**
 * A training model's state on a device, and the plans that run it. One thread at a time: a call from another one while
 * it works throws. close() frees it; what is not closed is freed after it has become unreachable.
 */
public final class Session implements AutoCloseable {
  private final Handle handle;
  private volatile long calls;

  public Session(Model training, String... options) {
    final String[] checked = Options.checked(options);
    final long address = training.handle().use(model -> Native.sessionCreate(model, checked));
    handle = Handle.of(this, address, Native::sessionFree, "session");
  }

  /** Runs an entry point: "step", "evaluate", "predict", "accumulate", "apply". Inputs are read in place. */
  public Outputs run(String entry, Tensor... inputs) {
    return outputs(call(address -> Native.sessionRun(address, entry, inputs)), outputPorts(entry));
  }

  /** Trains until a limit is reached or a callback ends it; `evaluation` and `observer` may be null. */
  public StopReason fit(DataSource training, DataSource evaluation, Observer observer, String... options) {
    final String[] checked = Options.checked(options);
    return StopReason.of(this.<Integer>with(training, evaluation, (address, first, second) ->
        Native.fit(address, training, first, evaluation, second, checked, observer)));
  }

  public StopReason fit(DataSource training, String... options) {
    return fit(training, null, null, options);
  }

  /** Loss and metrics over all data. */
  public Map<String, Double> evaluate(DataSource data, String... options) {
    return evaluate(data, (Observer) null, options);
  }

  /** The same with an observer, whose onNote is called. */
  public Map<String, Double> evaluate(DataSource data, Observer observer, String... options) {
    final String[] checked = Options.checked(options);
    return mapOf(this.<Object[]>with(data, null, (address, first, second) ->
        Native.evaluate(address, data, first, checked, observer)));
  }

  /** The outputs of "predict" for all samples of arrays or files, in their order. */
  public Outputs predict(DataSource data, String... options) {
    return predict(data, (Observer) null, options);
  }

  /** The same with an observer, whose onNote is called. */
  public Outputs predict(DataSource data, Observer observer, String... options) {
    final String[] checked = Options.checked(options);
    final Tensor[] tensors = this.<Tensor[]>with(data, null, (address, first, second) ->
        Native.predict(address, data, first, checked, observer));
    return outputs(tensors, outputPorts("predict"));
  }

  /** The metrics that are made of statistics, outputs of "evaluate" of one run or summed over several. */
  public Map<String, Double> metrics(Tensor... statistics) {
    return mapOf(call(address -> Native.sessionMetrics(address, statistics)));
  }

  /** What the metrics of the last evaluate() or metrics() say by class. */
  public Outputs metricTables() {
    return outputs(call(Native::sessionMetricTables), new Port[0]);
  }

  /** The tokens that a causal language model writes after each prompt; `onToken` may be null. */
  public long[][] generate(long[][] prompts, OnToken onToken, String... options) {
    final String[] checked = Options.checked(options);
    final List<List<Long>> texts = new ArrayList<>();
    for (int i = 0; i < prompts.length; ++i) texts.add(new ArrayList<>());
    call(address -> {
      Native.generate(address, prompts, checked, (text, token) -> {
        texts.get(text).add(token);
        return onToken == null ? 0 : onToken.drawn(text, token).number;
      });
      return null;
    });
    return texts.stream()
        .map(text -> text.stream().mapToLong(Long::longValue).toArray())
        .toArray(long[][]::new);
  }

  /** Why the last generate() was not as fast as with a cache; "" if it was. */
  public String generateNote() {
    return handle.use(Native::generateNote);
  }

  /** The entry points with outputs, "predict" first. */
  public String[] entries() {
    return handle.use(Native::sessionEntries);
  }

  public Port[] inputPorts(String entry) {
    return handle.use(address -> Native.sessionInputs(address, entry));
  }

  public Port[] outputPorts(String entry) {
    return handle.use(address -> Native.sessionOutputs(address, entry));
  }

  /** The states with role, type and shape. */
  public Port[] statePorts() {
    return handle.use(Native::sessionStatePorts);
  }

  /** The names of the state: weights, optimizer slots, statistics, keys. */
  public String[] states() {
    return handle.use(Native::sessionStates);
  }

  /** What a run of an entry point executes, for the options "batch" and "dim". Runs nothing. */
  public Plan plan(String entry, String... options) {
    final String[] checked = Options.checked(options);
    return call(address -> Native.sessionPlan(address, entry, checked));
  }

  /** What data of an input are multiplied by before run(). */
  public double scale(String input) {
    return call(address -> Native.sessionScale(address, input));
  }

  /** Along which axis an input holds its samples. */
  public int sampleAxis(String entry, String input) {
    return call(address -> Native.sessionSampleAxis(address, entry, input));
  }

  /** A copy of a state. */
  public Tensor get(String name) {
    return call(address -> {
      final Tensor state = Native.sessionState(address, name);
      final long bytes = Math.multiplyExact(state.elements(), (long) state.type().bytes());
      final ByteBuffer data = ByteBuffer.allocateDirect(Math.toIntExact(bytes)).order(ByteOrder.nativeOrder());
      Native.sessionGet(address, name, data);
      return Tensor.of(name, state.type(), state.shape(), data);
    });
  }

  /** Sets a state to a tensor of its type and shape. */
  public void set(String name, Tensor value) {
    call(address -> {
      final Tensor state = Native.sessionState(address, name);
      if (state.type() != value.type()) {
        throw new IllegalArgumentException("state '" + name + "' is of " + state.type() + ", not of " + value.type());
      }
      Native.sessionSet(address, name, value.buffer());
      return null;
    });
  }

  /**
   * A state where the session keeps it, without a copy: to be read and written while the session is idle. As long as
   * the buffer, or one that is made of it, is reachable, the state's memory stays: a session that is closed before
   * is freed after the garbage collector has found the last such buffer.
   */
  public ByteBuffer buffer(String name) {
    final long address = handle.acquire();
    boolean kept = false;
    try {
      final ByteBuffer state = Native.sessionAddress(address, name).order(ByteOrder.nativeOrder());
      final Handle owner = handle;
      Reclaimer.register(state, owner::release);
      kept = true;
      return state;
    } finally {
      if (!kept) handle.release();
    }
  }

  public Device device() {
    return handle.use(Native::sessionDevice);
  }

  /** This process's number among those that train together, from 0 on. */
  public int rank() {
    return handle.use(Native::sessionRanks)[0];
  }

  /** How many processes train together. */
  public int ranks() {
    return handle.use(Native::sessionRanks)[1];
  }

  /** Exchanges the values of a state with those of another session of the same model. */
  public void swap(String name, Session other) {
    call(address -> other.call(second -> {
      Native.sessionSwap(address, second, name);
      return null;
    }));
  }

  /** Reads an adapter in PEFT's format and keeps it as `name`. */
  public void loadAdapter(String name, String folder) {
    call(address -> {
      Native.sessionLoadAdapter(address, name, folder);
      return null;
    });
  }

  /** Gives the states the values of an adapter. */
  public void setAdapter(String name) {
    call(address -> {
      Native.sessionSetAdapter(address, name);
      return null;
    });
  }

  /** Begins anew, with weights drawn if the model was built with the option "init". */
  public void initialize(long seed) {
    call(address -> {
      Native.sessionInitialize(address, seed);
      return null;
    });
  }

  /** The training model with the present state: save it for a checkpoint, export it for inference. */
  public Model model() {
    return new Model(call(Native::sessionModel));
  }

  @Override
  public void close() {
    handle.close();
  }

  /** A call after which outputs of earlier ones are not valid. */
  <R> R call(LongFunction<R> function) {
    ++calls;
    return handle.use(function);
  }

  private interface OnData<R> {
    R apply(long session, long training, long evaluation);
  }

  private <R> R with(DataSource training, DataSource evaluation, OnData<R> function) {
    final long first = training.acquire();
    try {
      final long second = evaluation == null ? 0 : evaluation.acquire();
      try {
        return call(address -> function.apply(address, first, second));
      } finally {
        if (evaluation != null) evaluation.release();
      }
    } finally {
      training.release();
    }
  }

  private Outputs outputs(Tensor[] tensors, Port[] ports) {
    final long made = calls;
    for (Tensor tensor : tensors) {
      tensor.validFor(() -> {
        if (handle.isClosed()) throw new IllegalStateException("the session is closed");
        if (calls != made) throw new IllegalStateException("outputs are valid until the next call with the session");
      });
    }
    return new Outputs(tensors, ports);
  }

  private static Map<String, Double> mapOf(Object[] namesAndValues) {
    return Evaluation.metrics((String[]) namesAndValues[0], (double[]) namesAndValues[1]);
  }
}
