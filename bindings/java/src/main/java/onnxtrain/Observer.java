package onnxtrain;

import java.util.function.Consumer;
import java.util.function.Function;

/**
 * What is told of a training, on the thread that called it: new Observer().onStep(step -> ...).onNote(text -> ...). An
 * exception ends the training, and the call throws it. The session may be used in onEvaluation, and everywhere on the
 * CPU or with the option "wait-for-steps".
 */
public final class Observer {
  private Function<Step, Next> step;
  private Function<Evaluation, Next> evaluation;
  private Function<String, Next> checkpoint;
  private Consumer<String> note;

  public Observer onStep(Function<Step, Next> callback) {
    step = callback;
    return this;
  }

  public Observer onEvaluation(Function<Evaluation, Next> callback) {
    evaluation = callback;
    return this;
  }

  /** Gets the path when the writing of a checkpoint starts. */
  public Observer onCheckpoint(Function<String, Next> callback) {
    checkpoint = callback;
    return this;
  }

  /** Gets a line on something unusual that the training goes on from. */
  public Observer onNote(Consumer<String> callback) {
    note = callback;
    return this;
  }

  // What native code asks for, and calls.
  boolean hasStep() {
    return step != null;
  }

  int step(Step told) {
    return step.apply(told).number;
  }

  int evaluation(Evaluation told) {
    return evaluation == null ? 0 : evaluation.apply(told).number;
  }

  int checkpoint(String path) {
    return checkpoint == null ? 0 : checkpoint.apply(path).number;
  }

  int note(String text) {
    if (note != null) note.accept(text);
    return 0;
  }
}
