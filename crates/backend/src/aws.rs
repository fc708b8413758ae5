//! AWS, whichever of its services is called: who we are, where it is, and how it is spoken to.
//!
//! The SDK's own client would bring a second cryptography beside the one that Postgres, Kubernetes and Prometheus are
//! spoken to with: a slow build, and a sixth of a small program. This one is the SDK's in everything else.

use aws_config::{BehaviorVersion, ConfigLoader, Region};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, ConnectorBuilder};

pub use aws_config::SdkConfig;

/// AWS's usual environment and files, proxies of the environment included.
#[must_use]
pub fn loader() -> ConfigLoader {
    let client = Builder::new().build_with_connector_fn(|settings, components| {
        let mut connector = ConnectorBuilder::default().tls_provider(Provider::Rustls(CryptoMode::Ring));
        connector
            .set_connector_settings(settings.cloned())
            .set_sleep_impl(components.and_then(|components| components.sleep_impl()))
            .set_proxy_config(Some(ProxyConfig::from_env()));
        connector.build()
    });
    aws_config::defaults(BehaviorVersion::latest()).http_client(client)
}

/// What environment and files say, but for what is named here. A profile goes before credentials of the environment.
pub async fn config(region: Option<&str>, profile: Option<&str>) -> SdkConfig {
    let mut loader = loader();
    if let Some(region) = region {
        loader = loader.region(Region::new(region.to_owned()));
    }
    if let Some(profile) = profile {
        let credentials =
            aws_config::profile::ProfileFileCredentialsProvider::builder().profile_name(profile);
        loader = loader.profile_name(profile).credentials_provider(credentials.build());
    }
    Box::pin(loader.load()).await
}
