//! One conversation as it stands in a JSON file, in any of the formats.

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Body, Message, TokenTurn};

/// Reads one conversation. An error names the place within `json` and what was expected there.
pub(super) fn parse(json: &[u8]) -> Result<Record, serde_json::Error> {
    serde_json::from_slice(json)
}

/// A conversation, with its id where the file gives one.
#[derive(Debug, PartialEq)]
pub(super) struct Record {
    pub(super) id: Option<String>,
    pub(super) body: Body,
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RecordVisitor)
    }
}

struct RecordVisitor;

impl<'de> Visitor<'de> for RecordVisitor {
    type Value = Record;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a conversation (an object) or one response's token ids (an array)")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Record, A::Error> {
        let response = Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
        let prompt = Vec::new();
        Ok(Record {
            id: None,
            body: Body::Tokens(vec![TokenTurn { prompt, response }]),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Record, A::Error> {
        Fields::deserialize(de::value::MapAccessDeserializer::new(map))?
            .into_record()
            .map_err(de::Error::custom)
    }
}

/// All keys that mean something in one of the formats; others are ignored.
#[derive(Deserialize)]
struct Fields {
    id: Option<Value>,
    messages: Option<Vec<ChatMessage>>,
    conversations: Option<Vec<ShareGptMessage>>,
    turns: Option<Vec<TokenTurn>>,
    #[serde(alias = "token_ids")]
    tokens: Option<Vec<u32>>,
    #[serde(alias = "prompt_token_ids")]
    prompt_tokens: Option<Vec<u32>>,
    #[serde(alias = "response_token_ids")]
    response_tokens: Option<Vec<u32>>,
}

impl Fields {
    fn into_record(self) -> Result<Record, &'static str> {
        let id = self.id.and_then(|id| match id {
            Value::String(id) => Some(id),
            Value::Number(id) => Some(id.to_string()),
            _ => None,
        });
        let mut bodies = Vec::new();
        if let Some(messages) = self.messages {
            bodies.push(Body::Messages(
                messages.into_iter().map(Into::into).collect(),
            ));
        }
        if let Some(messages) = self.conversations {
            bodies.push(Body::Messages(
                messages.into_iter().map(Into::into).collect(),
            ));
        }
        if let Some(turns) = self.turns {
            bodies.push(Body::Tokens(turns));
        }
        if let Some(response) = self.tokens {
            let prompt = Vec::new();
            bodies.push(Body::Tokens(vec![TokenTurn { prompt, response }]));
        }
        match (self.prompt_tokens, self.response_tokens) {
            (prompt, Some(response)) => {
                let prompt = prompt.unwrap_or_default();
                bodies.push(Body::Tokens(vec![TokenTurn { prompt, response }]));
            }
            (Some(_), None) => {
                return Err("prompt_tokens without response_tokens: what did the model answer?");
            }
            (None, None) => {}
        }
        match (bodies.pop(), bodies.is_empty()) {
            (Some(body), true) => Ok(Record { id, body }),
            (Some(_), false) => Err(
                "more than one of messages, conversations, turns, tokens and response_tokens: which one is the conversation?",
            ),
            (None, _) => {
                Err("expected one of messages, conversations, turns, tokens and response_tokens")
            }
        }
    }
}

/// A message in the form of the chat APIs.
#[derive(Deserialize)]
struct ChatMessage {
    role: String,
    #[serde(default)]
    content: Content,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    function: FunctionCall,
}

#[derive(Deserialize)]
struct FunctionCall {
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl From<ChatMessage> for Message {
    fn from(message: ChatMessage) -> Self {
        let Content { mut text, ignored } = message.content;
        for call in message.tool_calls.unwrap_or_default() {
            push_tool_call(&mut text, &call.function.name, &call.function.arguments);
        }
        Self {
            role: role(message.role),
            content: text,
            ignored_parts: ignored,
        }
    }
}

/// A message in ShareGPT's form.
#[derive(Deserialize)]
struct ShareGptMessage {
    from: String,
    #[serde(default)]
    value: Content,
}

impl From<ShareGptMessage> for Message {
    fn from(message: ShareGptMessage) -> Self {
        let role = match message.from.as_str() {
            "human" => "user".to_owned(),
            "gpt" | "chatgpt" | "bing" | "bard" => "assistant".to_owned(),
            _ => role(message.from),
        };
        Self {
            role,
            content: message.value.text,
            ignored_parts: message.value.ignored,
        }
    }
}

/// Whose message it is: what some write for `assistant` is that.
fn role(name: String) -> String {
    if name.eq_ignore_ascii_case("assistant") || name == "model" {
        "assistant".to_owned()
    } else {
        name
    }
}

/// A message's text: a string, nothing, or a list of parts of which text, tool calls and tool results are text.
#[derive(Debug, Default, PartialEq)]
struct Content {
    text: String,
    /// Parts that are no text: images, audio, files.
    ignored: usize,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a message's text: a string, null or a list of parts")
            }

            fn visit_unit<E>(self) -> Result<Content, E> {
                Ok(Content::default())
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content {
                    text: text.to_owned(),
                    ignored: 0,
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut content = Content::default();
                while let Some(part) = parts.next_element::<Part>()? {
                    part.append_to(&mut content);
                }
                Ok(content)
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    #[serde(alias = "input_text", alias = "output_text")]
    Text { text: String },
    ToolUse {
        name: String,
        #[serde(default)]
        input: Value,
    },
    ToolResult {
        #[serde(default)]
        content: Box<Content>,
    },
    #[serde(untagged)]
    Other(IgnoredAny),
}

impl Part {
    fn append_to(self, content: &mut Content) {
        match self {
            Self::Text { text } => content.text.push_str(&text),
            Self::ToolUse { name, input } => push_tool_call(&mut content.text, &name, &input),
            Self::ToolResult { content: result } => {
                content.text.push_str(&result.text);
                content.ignored += result.ignored;
            }
            Self::Other(_) => content.ignored += 1,
        }
    }
}

/// Writes a tool call the way many models write theirs. A string is taken to be JSON already.
fn push_tool_call(text: &mut String, name: &str, arguments: &Value) {
    if !text.is_empty() {
        text.push('\n');
    }
    let name = Value::from(name);
    let arguments = match arguments {
        Value::String(json) => json.clone(),
        other => other.to_string(),
    };
    text.push_str(&format!(
        "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
    ));
}
