package onnxtrain;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** What was found in a model: an obstacle to its training, or something worth knowing. */
public final class Finding {
  /** A node, a weight, a part of the work. */
  public final String subject;

  public final String what;
  /** What to do; may be "". */
  public final String advice;

  private Finding(String subject, String what, String advice) {
    this.subject = subject;
    this.what = what;
    this.advice = advice;
  }

  static List<Finding> list(String[] texts) {
    final List<Finding> findings = new ArrayList<>();
    for (int i = 0; i < texts.length; i += 3) findings.add(new Finding(texts[i], texts[i + 1], texts[i + 2]));
    return Collections.unmodifiableList(findings);
  }

  @Override
  public String toString() {
    return subject + ": " + what + (advice.isEmpty() ? "" : " (" + advice + ")");
  }
}
