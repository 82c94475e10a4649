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

  Step(long step, long epoch, long samples, double loss, double learningRate, double accuracy, double gradNorm,
      double seconds, double lossScale, boolean skipped) {
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
  }
}
