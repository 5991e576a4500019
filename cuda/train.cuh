// Gradients of the models that `train` has (lab/src/model): softmax regression, and a perceptron with one hidden layer
// of rectified linear units. Plain loops, one thread for each result; the sums are taken in an order that depends on
// the shapes alone. They agree with the CPU's to 10^-5 and not to the bit: sums there are taken in another order.
//
// A gradient takes these launches, on one stream:
//
//     softmax regression: linear, softmax, gradient
//     perceptron:         linear of the hidden layer (relu = 1), linear of the output layer, softmax,
//                         gradient of the output layer, deltas of the output layer, gradient of the hidden layer
//
// `outputs` of linear is what softmax turns into derivatives ("deltas") and what gradient and deltas of the same layer
// then read. `results` of the output layer's deltas is `outputs` of the hidden layer's gradient.
#pragma once

namespace {

// The inputs of one example.
__device__ __forceinline__ const float *example(const slackline_layer &layer, Index e) {
    return layer.inputs + (layer.rows != nullptr ? layer.rows[e] : e) * layer.columns;
}

}  // namespace

// outputs[e][o] = biases[o] + weights[o] . inputs[e], and 0 where that is negative if `relu`.
extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_train_linear(const __grid_constant__ slackline_layer layer) {
    const Index outputs = static_cast<Index>(layer.examples) * layer.units;
    for (Index at = thread(); at < outputs; at += threads()) {
        const Index o = at % layer.units;
        const float *input = example(layer, at / layer.units), *weights = layer.parameters + o * layer.columns;
        float output = layer.parameters[static_cast<Index>(layer.units) * layer.columns + o];
        for (unsigned i = 0; i < layer.columns; i++) {
            output += weights[i] * input[i];
        }
        // Written so that NaN stays NaN.
        layer.outputs[at] = layer.relu != 0 && output < 0.0f ? 0.0f : output;
    }
}

// losses[e] = the cross-entropy of the example's class after softmax, in nats; scores[e] = share * its derivatives by
// the scores: the probabilities, less one for the class.
extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_train_softmax(const __grid_constant__ slackline_softmax softmax) {
    for (Index e = thread(); e < softmax.examples; e += threads()) {
        float *scores = softmax.scores + e * softmax.classes;
        const unsigned label = softmax.labels[softmax.rows != nullptr ? softmax.rows[e] : e];
        float highest = scores[0];
        for (unsigned c = 1; c < softmax.classes; c++) {
            highest = scores[c] > highest ? scores[c] : highest;
        }
        // Taking the highest off keeps the exponentials from overflowing.
        const float score = scores[label] - highest;
        float sum = 0.0f;
        for (unsigned c = 0; c < softmax.classes; c++) {
            scores[c] = expf(scores[c] - highest);
            sum += scores[c];
        }
        for (unsigned c = 0; c < softmax.classes; c++) {
            scores[c] = (scores[c] / sum - (c == label ? 1.0f : 0.0f)) * softmax.share;
        }
        softmax.losses[e] = logf(sum) - score;
    }
}

// results[o][i] = sum over e of outputs[e][o] * inputs[e][i], and then results[units][o], the biases', likewise with 1.
extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_train_gradient(const __grid_constant__ slackline_layer layer) {
    const Index weights = static_cast<Index>(layer.units) * layer.columns;
    for (Index at = thread(); at < weights + layer.units; at += threads()) {
        const bool is_bias = at >= weights;
        const Index o = is_bias ? at - weights : at / layer.columns, i = at % layer.columns;
        float sum = 0.0f;
        for (unsigned e = 0; e < layer.examples; e++) {
            const float delta = layer.outputs[static_cast<Index>(e) * layer.units + o];
            sum += is_bias ? delta : delta * example(layer, e)[i];
        }
        layer.results[at] = sum;
    }
}

// results[e][i] = sum over o of outputs[e][o] * weights[o][i], the derivatives by the inputs, which are the outputs of
// a layer with `relu`: nothing flows back through a unit that is off.
extern "C" __global__ void __launch_bounds__(SLACKLINE_BLOCK)
    slackline_train_deltas(const __grid_constant__ slackline_layer layer) {
    const Index inputs = static_cast<Index>(layer.examples) * layer.columns;
    for (Index at = thread(); at < inputs; at += threads()) {
        const Index e = at / layer.columns, i = at % layer.columns;
        float sum = 0.0f;
        for (unsigned o = 0; o < layer.units; o++) {
            sum += layer.outputs[e * layer.units + o] * layer.parameters[static_cast<Index>(o) * layer.columns + i];
        }
        layer.results[at] = example(layer, e)[i] == 0.0f ? 0.0f : sum;
    }
}
