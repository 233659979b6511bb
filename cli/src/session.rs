//! Conversations as the drafter sees them: tokens, and where in them the turns are.
//!
//! A chat message becomes four parts, each tokenized on its own: `<|im_start|>ROLE\n`, the content, `<|im_end|>` and `\n`.
//! The prompt of an assistant's turn is everything before its content, its response is the content and `<|im_end|>`.

use std::ops::Range;

use anyhow::Context;
use rayon::prelude::*;

use crate::input::{Body, Conversation, Message, Place};
use crate::tokenizer::Tokenizer;

/// One conversation in tokens.
#[derive(Debug, PartialEq)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) place: Place,
    tokens: Vec<u32>,
    turns: Vec<Turn>,
    /// Turns without a response. They are part of later prompts, but there is nothing to draft in them.
    pub(crate) empty_turns: usize,
    /// Parts of the conversation that are no text and were left out.
    pub(crate) ignored_parts: usize,
}

#[derive(Debug, PartialEq)]
struct Turn {
    prompt: Range<usize>,
    response: Range<usize>,
}

impl Session {
    /// Tokenizes a conversation. The error names its place in the file.
    pub(crate) fn new(conversation: Conversation, tokenizer: &Tokenizer) -> anyhow::Result<Self> {
        let mut session = Self {
            id: conversation.id,
            place: conversation.place,
            tokens: Vec::new(),
            turns: Vec::new(),
            empty_turns: 0,
            ignored_parts: 0,
        };
        match conversation.body {
            Body::Messages(messages) => session.push_messages(&messages, tokenizer),
            Body::Text(text) => tokenizer
                .encode(&text)
                .map(|tokens| session.push_turn(&[], &tokens)),
            Body::Tokens(turns) => turns.iter().try_for_each(|turn| {
                check_ids("prompt", &turn.prompt)?;
                check_ids("response", &turn.response)?;
                session.push_turn(&turn.prompt, &turn.response);
                Ok(())
            }),
        }
        .with_context(|| session.place.to_string())?;
        Ok(session)
    }

    /// Prompt and response of a turn; no response is empty.
    pub(crate) fn turn(&self, index: usize) -> Option<(&[u32], &[u32])> {
        let turn = self.turns.get(index)?;
        Some((
            &self.tokens[turn.prompt.clone()],
            &self.tokens[turn.response.clone()],
        ))
    }

    pub(crate) fn num_turns(&self) -> u64 {
        self.turns.len() as u64
    }

    /// Tokens of all responses.
    pub(crate) fn response_tokens(&self) -> u64 {
        self.turns
            .iter()
            .map(|turn| turn.response.len() as u64)
            .sum()
    }

    fn push_messages(&mut self, messages: &[Message], tokenizer: &Tokenizer) -> anyhow::Result<()> {
        let end = tokenizer.encode("<|im_end|>")?;
        let newline = tokenizer.encode("\n")?;
        let encode = |message: &Message| {
            let header = tokenizer.encode(&format!("<|im_start|>{}\n", message.role))?;
            anyhow::Ok((header, tokenizer.encode(&message.content)?))
        };
        let encoded: Vec<_> = messages
            .par_iter()
            .map(encode)
            .collect::<anyhow::Result<_>>()?;
        for (message, (header, content)) in messages.iter().zip(encoded) {
            self.ignored_parts += message.ignored_parts;
            self.tokens.extend(header);
            let response = self.tokens.len()..self.tokens.len() + content.len() + end.len();
            if message.role == "assistant" {
                if content.is_empty() {
                    self.empty_turns += 1;
                } else {
                    let prompt = 0..response.start;
                    self.turns.push(Turn { prompt, response });
                }
            }
            self.tokens.extend(content);
            self.tokens.extend(&end);
            self.tokens.extend(&newline);
        }
        Ok(())
    }

    fn push_turn(&mut self, prompt: &[u32], response: &[u32]) {
        if response.is_empty() {
            self.empty_turns += 1;
            return;
        }
        let start = self.tokens.len();
        self.tokens.extend(prompt);
        let middle = self.tokens.len();
        self.tokens.extend(response);
        self.turns.push(Turn {
            prompt: start..middle,
            response: middle..self.tokens.len(),
        });
    }
}

/// The drafter's tokens are i32, as the engines' are.
fn check_ids(part: &str, tokens: &[u32]) -> anyhow::Result<()> {
    let too_large = tokens.iter().position(|&token| token > i32::MAX as u32);
    match too_large {
        Some(at) => anyhow::bail!(
            "{part} token {at}: expected an id below 2^31, got {}",
            tokens[at]
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::TokenTurn;

    fn session(body: Body) -> anyhow::Result<Session> {
        let place = Place {
            file: "test".into(),
            line: 7,
        };
        let conversation = Conversation {
            id: "a".into(),
            place,
            body,
        };
        Session::new(
            conversation,
            &Tokenizer::load("r50k_base").map_err(|failure| failure.error)?,
        )
    }

    fn message(role: &str, content: &str) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
            ignored_parts: 1,
        }
    }

    fn text(tokens: &[u32]) -> String {
        tiktoken_rs::r50k_base_singleton()
            .decode(tokens)
            .expect("the tokens are r50k_base's")
    }

    #[test]
    fn a_turn_is_prompt_and_response() {
        let messages = [
            ("user", "Hi"),
            ("assistant", ""),
            ("user", "?"),
            ("assistant", "Hello <|endoftext|>"),
        ];
        let messages = messages
            .map(|(role, content)| message(role, content))
            .into();
        let session = session(Body::Messages(messages)).expect("tokenizes");
        let turns: Vec<_> = (0..).map_while(|index| session.turn(index)).collect();
        assert_eq!(turns.len(), 1);
        assert_eq!(
            text(turns[0].0),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(text(turns[0].1), "Hello <|endoftext|><|im_end|>");
        assert!(
            !turns[0].1.contains(&50256),
            "a special token in the text is ordinary text"
        );
        assert_eq!((session.empty_turns, session.ignored_parts), (1, 4));
    }

    #[test]
    fn token_turns_stand_for_themselves() {
        let turn = |prompt: &[u32], response: &[u32]| TokenTurn {
            prompt: prompt.into(),
            response: response.into(),
        };
        let body = Body::Tokens(vec![
            turn(&[1, 2], &[3]),
            turn(&[9], &[]),
            turn(&[], &[4, 5]),
        ]);
        let session = session(body).expect("valid ids");
        let turns: Vec<_> = (0..).map_while(|index| session.turn(index)).collect();
        assert_eq!(turns, [(&[1, 2][..], &[3][..]), (&[][..], &[4, 5][..])]);
        assert_eq!(session.empty_turns, 1);
    }

    #[test]
    fn an_id_over_31_bits_is_an_error_with_its_place() {
        let (prompt, response) = (vec![1], vec![2, 1 << 31]);
        let error =
            session(Body::Tokens(vec![TokenTurn { prompt, response }])).expect_err("too large");
        assert_eq!(
            format!("{error:#}"),
            "test:7: response token 1: expected an id below 2^31, got 2147483648"
        );
    }
}
