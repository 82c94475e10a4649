package onnxtrain;

import java.util.List;

/** Whether a forward model can be trained, and everything that is in the way. */
public final class Report {
  /** What the command onnx-train check prints. */
  public final String text;
  /** The expression of the loss that the model was tried with. */
  public final String loss;
  /** Why it cannot be trained, in one line; "" when it can. */
  public final String failure;

  public final List<Finding> obstacles;
  public final List<Finding> findings;

  Report(String[][] texts) {
    text = texts[0][0];
    loss = texts[0][1];
    failure = texts[0][2];
    obstacles = Finding.list(texts[1]);
    findings = Finding.list(texts[2]);
  }
}
