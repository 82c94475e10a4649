package onnxtrain;

/** Called with each token that is drawn and the number of its text. */
@FunctionalInterface
public interface OnToken {
  /** Returns false to end all. */
  boolean drawn(int text, long token);
}
