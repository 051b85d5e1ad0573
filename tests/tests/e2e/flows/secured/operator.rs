//! A server whose users present tokens that an account signed. An operator signed the account's
//! token.

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use serde_json::{Value, json};

pub struct Operator {
    /// The configuration of the server.
    pub config: String,
    /// The credentials of a user, in the form of a credentials file.
    pub credentials: String,
}

impl Operator {
    pub fn new() -> Result<Self> {
        let (operator, system, account, user) = (
            KeyPair::new_operator(),
            KeyPair::new_account(),
            KeyPair::new_account(),
            KeyPair::new_user(),
        );
        let own = token(&operator, &operator, "operator", json!({}))?;
        let unlimited = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
            "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        });
        let accounts = [
            (
                &system,
                json!({ "subs": -1, "conn": -1, "data": -1, "payload": -1 }),
            ),
            (&account, unlimited),
        ];
        let preloaded = accounts.map(|(account, limits)| -> Result<String> {
            let token = token(&operator, account, "account", json!({ "limits": limits }))?;
            Ok(format!("{}: {token}", account.public_key()))
        });
        let preloaded = preloaded
            .into_iter()
            .collect::<Result<Vec<_>>>()?
            .join("\n");
        let config = format!(
            "operator: {own}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{preloaded}\n}}",
            system.public_key()
        );
        let token = token(
            &account,
            &user,
            "user",
            json!({ "subs": -1, "data": -1, "payload": -1 }),
        )?;
        let credentials = format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed()?
        );
        Ok(Self {
            config,
            credentials,
        })
    }
}

/// Returns a token with claims about `subject`, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, kind: &str, mut claims: Value) -> Result<String> {
    (claims["type"], claims["version"]) = (kind.into(), 2.into());
    let body = json!({
        "jti": "one", "iat": 1_700_000_000, "iss": issuer.public_key(), "name": kind, "sub": subject.public_key(), "nats": claims,
    });
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!(
        "{}.{}",
        encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })),
        encode(&body)
    );
    let signature = issuer.sign(signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}
