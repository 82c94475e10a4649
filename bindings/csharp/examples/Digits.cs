// Trains on digits, stops in the middle, goes on to the bit where it stopped, exports, and predicts.
//   mono Digits.exe MODEL.onnx TRAIN.npz TEST.npz FOLDER
using System;
using System.Linq;
using OnnxTrain;

internal static class Digits {
    private static void Main(string[] arguments) {
        string train = arguments[1], test = arguments[2], folder = arguments[3];
        using (var forward = Model.Load(arguments[0]))
        using (var training = forward.Build(("loss", "cross_entropy"), ("optimizer", "adamw")))
        using (var whole = new Session(training))
        using (var first = new Session(training))
        using (var second = new Session(training)) {
            Fit(whole, train, folder + "/whole", new Observer());
            // The same in two parts: after 70 steps the first one ends, and another session goes on from its files.
            Fit(first, train, folder + "/parts", new Observer { OnStep = s => s.Number == 70 ? Next.Interrupt : Next.Continue });
            Fit(second, train, folder + "/parts", new Observer { OnNote = Console.WriteLine }, ("resume", "true"));
            foreach (var name in whole.States) {
                if (!whole.Bytes(name).SequenceEqual(second.Bytes(name))) throw new Exception($"state '{name}' differs");
            }
            Console.WriteLine($"{whole.States.Count} states are equal to the bit");

            using (var data = Dataset.Open(test, second, "evaluate")) {
                Console.WriteLine(FormattableString.Invariant($"accuracy {second.Evaluate(data)["accuracy"]:F3}"));
            }
            using (var trained = second.Model())
            using (var inference = trained.Export()) inference.Save(folder + "/digits.onnx");
        }
        Console.WriteLine(FormattableString.Invariant($"accuracy {Accuracy(folder + "/digits.onnx", test):F3} of the exported model"));
    }

    private static void Fit(Session session, string path, string folder, Observer observer, params ValueTuple<string, string>[] more) {
        var options = new ValueTuple<string, string>[] {
            ("epochs", "3"), ("batch-size", "32"), ("lr", "0.003"), ("seed", "1"), ("out", folder)
        };
        using (var data = Dataset.Open(path, session)) {
            Console.WriteLine(session.Fit(data, null, observer, options.Concat(more).ToArray()));
        }
    }

    private static double Accuracy(string model, string path) {
        using (var inference = Model.Load(model))
        using (var session = new Session(inference))
        using (var data = Dataset.Open(path, session))
        using (var labelled = Dataset.Open(path)) {
            var labels = labelled.Tensors.First(array => array.Name == "labels").AsReadOnlySpan<long>();
            var logits = session.Predict(data)["logits"].AsSpan<float>();  // in the session's memory, without a copy
            var right = 0;
            for (var i = 0; i < labels.Length; ++i) {
                var best = 0;
                for (var c = 1; c < 10; ++c) {
                    if (logits[10 * i + c] > logits[10 * i + best]) best = c;
                }
                if (best == labels[i]) ++right;
            }
            return (double)right / labels.Length;
        }
    }
}
