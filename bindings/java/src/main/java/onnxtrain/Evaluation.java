package onnxtrain;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/** An evaluation within a training. */
public final class Evaluation {
  public final long step;
  public final long epoch;
  /** Over all that counts since the previous evaluation; NaN where nothing does. */
  public final double trainLoss;
  /** The best so far, in the metric of the option "best". */
  public final boolean best;
  /** Empty without evaluation data. */
  public final Map<String, Double> metrics;
  /** What metrics say by class: valid within the callback. */
  public final Tensor[] tables;

  Evaluation(long step, long epoch, double trainLoss, boolean best, String[] names, double[] values, Tensor[] tables) {
    this.step = step;
    this.epoch = epoch;
    this.trainLoss = trainLoss;
    this.best = best;
    this.metrics = metrics(names, values);
    this.tables = tables;
  }

  static Map<String, Double> metrics(String[] names, double[] values) {
    final Map<String, Double> metrics = new LinkedHashMap<>();
    for (int i = 0; i < names.length; ++i) metrics.put(names[i], values[i]);
    return Collections.unmodifiableMap(metrics);
  }
}
