package onnxtrain;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Options are names and values in turn, "epochs", "5", "lr", "0.02", as the command onnx-train has them. A list is given
 * by commas or by several options of one name.
 */
public final class Options {
  private Options() {}

  /** The entries of a map as such a list; true and numbers become texts. */
  public static String[] of(Map<String, ?> options) {
    final List<String> list = new ArrayList<>();
    for (Map.Entry<String, ?> option : options.entrySet()) {
      list.add(option.getKey());
      list.add(String.valueOf(option.getValue()));
    }
    return list.toArray(new String[0]);
  }

  static String[] checked(String[] options) {
    if (options.length % 2 != 0) {
      throw new IllegalArgumentException("the option '" + options[options.length - 1] + "' has no value");
    }
    return options;
  }
}
