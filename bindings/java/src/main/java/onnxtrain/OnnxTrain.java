package onnxtrain;

/** What needs no model. */
public final class OnnxTrain {
  private OnnxTrain() {}

  /** The version of the library, "0.1.0". */
  public static String version() {
    return Native.version();
  }

  /** The options of "build", "session", "fit", "data" and others, as onnx_train_options lists them, a line each. */
  public static String options(String of) {
    final String lines = Native.options(of);
    if (lines == null) throw new IllegalArgumentException("no options are known of '" + of + "'");
    return lines;
  }

  /** The learning rate of a step, counted from 0. */
  public static double learningRate(long step, String... options) {
    return Native.learningRate(step, Options.checked(options));
  }

  /** The rows on which a training with these options trains, and those on which it evaluates: two arrays. */
  public static long[][] split(int samples, String... options) {
    return Native.split(samples, Options.checked(options));
  }
}
