//! ONNX files by hand, for tests of what readers make of them: right ones, and wrong ones that no library would write.

/// A message of protocol buffers under construction.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

impl Message {
    /// An empty one.
    pub fn new() -> Message {
        Message::default()
    }

    /// With an integer field.
    pub fn int(mut self, field: u64, value: i64) -> Message {
        varint(&mut self.0, field << 3);
        varint(&mut self.0, value as u64);
        self
    }

    /// With a field of bytes.
    pub fn bytes(mut self, field: u64, value: &[u8]) -> Message {
        varint(&mut self.0, field << 3 | 2);
        varint(&mut self.0, value.len() as u64);
        self.0.extend(value);
        self
    }

    /// With a text field.
    pub fn text(self, field: u64, value: &str) -> Message {
        self.bytes(field, value.as_bytes())
    }

    /// With a field that is a message.
    pub fn with(self, field: u64, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }

    /// With many fields of one number.
    pub fn all<'m>(self, field: u64, values: impl IntoIterator<Item = &'m Message>) -> Message {
        values.into_iter().fold(self, |m, v| m.with(field, v))
    }

    /// Of a node: with an integer attribute.
    pub fn attr_int(self, name: &str, value: i64) -> Message {
        self.with(5, &Message::new().text(1, name).int(3, value).int(20, 2))
    }

    /// Of a node: with an attribute that lists integers.
    pub fn attr_ints(self, name: &str, values: &[i64]) -> Message {
        let list = values.iter().fold(Message::new().text(1, name).int(20, 7), |m, v| m.int(8, *v));
        self.with(5, &list)
    }

    /// Of a node: with a tensor as attribute.
    pub fn attr_tensor(self, name: &str, value: &Message) -> Message {
        self.with(5, &Message::new().text(1, name).with(5, value).int(20, 4))
    }

    /// Of a node: with a graph as attribute.
    pub fn attr_graph(self, name: &str, value: &Message) -> Message {
        self.with(5, &Message::new().text(1, name).with(6, value).int(20, 5))
    }
}

/// A node.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let m = inputs.iter().fold(Message::new(), |m, i| m.text(1, i));
    outputs.iter().fold(m, |m, o| m.text(2, o)).text(3, &format!("the_{op}")).text(4, op)
}

/// An input or output of a dtype (ONNX's number) and sizes.
pub fn value(name: &str, dtype: i64, shape: &[i64]) -> Message {
    let dims: Vec<Message> = shape.iter().map(|d| Message::new().int(1, *d)).collect();
    let tensor = Message::new().int(1, dtype).with(2, &Message::new().all(1, &dims));
    Message::new().text(1, name).with(2, &Message::new().with(1, &tensor))
}

/// A tensor with its bytes.
pub fn tensor(name: &str, dtype: i64, shape: &[i64], raw: &[u8]) -> Message {
    let m = shape.iter().fold(Message::new(), |m, d| m.int(1, *d));
    m.int(2, dtype).text(8, name).bytes(9, raw)
}

/// A tensor of `int64`.
pub fn int64s(name: &str, values: &[i64]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, 7, &[values.len() as i64], &raw)
}

/// A tensor whose data are in another file.
pub fn external(name: &str, shape: &[i64], keys: &[(&str, &str)]) -> Message {
    let m = shape.iter().fold(Message::new(), |m, d| m.int(1, *d)).int(2, 1).text(8, name).int(14, 1);
    keys.iter().fold(m, |m, (k, v)| m.with(13, &Message::new().text(1, k).text(2, v)))
}

/// A graph of nodes, initializers, inputs and outputs.
pub fn graph(nodes: &[Message], initial: &[Message], inputs: &[Message], outputs: &[Message]) -> Message {
    Message::new().all(1, nodes).text(2, "g").all(5, initial).all(11, inputs).all(12, outputs)
}

/// A model of a graph at a version of the operator set, with functions.
pub fn model(graph: &Message, opset: i64, functions: &[Message]) -> Message {
    let imports = Message::new().text(1, "").int(2, opset);
    Message::new()
        .int(1, 8)
        .with(8, &imports)
        .with(8, &Message::new().text(1, "own").int(2, 1))
        .with(7, graph)
        .all(25, functions)
}

/// A function of the domain `own`.
pub fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: &[Message]) -> Message {
    let m = inputs.iter().fold(Message::new().text(1, name), |m, i| m.text(4, i));
    let m = outputs.iter().fold(m, |m, o| m.text(5, o)).all(7, nodes);
    m.with(9, &Message::new().text(1, "").int(2, 17))
        .with(9, &Message::new().text(1, "own").int(2, 1))
        .text(10, "own")
}
