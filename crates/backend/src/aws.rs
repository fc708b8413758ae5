//! AWS, whichever of its services is called: who we are, where it is, and how it is spoken to.
//!
//! The SDK's own client would bring a second cryptography beside the one that Postgres, Kubernetes and Prometheus are
//! spoken to with: a slow build, and a larger program. This one is the SDK's in everything else.

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, ConfigLoader, Region};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, ConnectorBuilder};
use aws_smithy_runtime_api::client::http::SharedHttpClient;

pub use aws_config::SdkConfig;

/// AWS's usual environment and files, proxies of the environment included.
#[must_use]
pub fn loader() -> ConfigLoader {
    aws_config::defaults(BehaviorVersion::latest()).http_client(client())
}

fn client() -> SharedHttpClient {
    Builder::new().build_with_connector_fn(|settings, components| {
        let mut connector = ConnectorBuilder::default().tls_provider(Provider::Rustls(CryptoMode::Ring));
        connector
            .set_connector_settings(settings.cloned())
            .set_sleep_impl(components.and_then(|components| components.sleep_impl()))
            .set_proxy_config(Some(ProxyConfig::from_env()));
        connector.build()
    })
}

/// What environment and files say, but for what is named here. A profile goes before credentials of the environment.
pub async fn config(region: Option<&str>, profile: Option<&str>) -> SdkConfig {
    let mut loader = loader();
    let region = region.map(|region| Region::new(region.to_owned()));
    if let Some(region) = &region {
        loader = loader.region(region.clone());
    }
    if let Some(profile) = profile {
        // It knows nothing of the loader: a role or a single sign-on is asked for over HTTP, in a region.
        let region = match region {
            Some(region) => Some(region),
            None => Box::pin(self::loader().profile_name(profile).load()).await.region().cloned(),
        };
        let means = ProviderConfig::without_region().with_region(region).with_http_client(client());
        let credentials =
            ProfileFileCredentialsProvider::builder().configure(&means).profile_name(profile).build();
        loader = loader.profile_name(profile).credentials_provider(credentials);
    }
    Box::pin(loader.load()).await
}
