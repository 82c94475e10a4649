package onnxtrain;

/** A step of a training. */
public final class Step {
  /** Counted from 1, as the epoch is. */
  public final long step;

  public final long epoch;
  public final long samples;
  /** Of the step's samples, before the update. */
  public final double loss;

  public final double learningRate;
  /** NaN where the model has none. */
  public final double accuracy;

  public final double gradNorm;
  public final double seconds;
  /** Of a model with loss scaling; else 0. */
  public final double lossScale;
  /** With loss scaling, the gradients overflow, and the weights stay as they are. */
  public final boolean skipped;
  /** Of the samples; 0 of a model that reads no texts. */
  public final long tokens;
  /**
   * What the step computes against what the machine can, about 0 to 1; NaN in the first ten seconds, of a model without
   * products and convolutions, and of several ranks on CPUs.
   */
  public final double utilization;

  Step(long step, long epoch, long samples, double loss, double learningRate, double accuracy, double gradNorm,
      double seconds, double lossScale, boolean skipped, long tokens, double utilization) {
    this.step = step;
    this.epoch = epoch;
    this.samples = samples;
    this.loss = loss;
    this.learningRate = learningRate;
    this.accuracy = accuracy;
    this.gradNorm = gradNorm;
    this.seconds = seconds;
    this.lossScale = lossScale;
    this.skipped = skipped;
    this.tokens = tokens;
    this.utilization = utilization;
  }
}
